//! The order in which the messages of a queue pair reach memory, as its device tells.

use crate::qp::QueuePairInner;
use crate::qp::make::QpObject;
use crate::verbs::Error;
use crate::verbs::devx::check;
use gdsync_sys::prm::command::{data_ordering, encode, qp};

/// Returns whether messages may reach memory in another order than that of their requests.
pub(crate) fn is_out_of_order(queue_pair: &QueuePairInner) -> Result<bool, Error> {
    let answer = context(queue_pair)?;
    Ok(answer.is_some_and(|answer| encode::data_ordering(&answer) != data_ordering::IBTA))
}

/// Returns the device's answer to QUERY_QP; none if the provider cannot be asked, and for targets, whose context is of
/// another kind.
pub(crate) fn context(queue_pair: &QueuePairInner) -> Result<Option<Vec<u8>>, Error> {
    let (input, mut output) = (encode::query_qp(queue_pair.number), vec![0; qp::BYTES]);
    let query = match &queue_pair.object {
        QpObject::Devx(made) => return made.query(&input, &mut output).map(|()| Some(output)),
        QpObject::Verbs(_) => queue_pair.domain.pd.device.api.devx_qp_query,
        QpObject::Target(_) => None,
    };
    let (Some(query), Some(made)) = (query, queue_pair.object.verbs()) else { return Ok(None) };
    let (asked, told) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
    // SAFETY: the queue pair is alive; both buffers have the lengths that are given.
    let rc = unsafe { query(made.as_ptr(), asked, input.len(), told, output.len()) };
    check("QUERY_QP", rc, &output, || format!("queue pair {:#x}", queue_pair.number))?;
    Ok(Some(output))
}

#[cfg(test)]
mod tests {
    use crate::{Device, ProtectionDomain, QueuePair, QueuePairConfig};

    #[test]
    fn an_orderly_card_places_in_order() {
        let pd = ProtectionDomain::new(&Device::software().unwrap()).unwrap();
        let queue_pair = QueuePair::new(&pd, QueuePairConfig::default()).unwrap();
        let is_unordered = std::env::var("SOFTHCA_LIBERTIES").is_ok_and(|kinds| kinds.contains("unordered"));
        assert_eq!(queue_pair.places_out_of_order().unwrap(), is_unordered);
    }
}
