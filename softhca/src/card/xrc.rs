//! Commands for XRC domains, and for queue pairs that are opened more than once.

use super::config::QpConfig;
use super::device::Card;
use super::engine::XrcDomain;
use super::error::CardError;
use super::relations::{QP, XRCD, missing, within};

impl Card {
    /// Opens the XRC domain of a file, identified by device and inode, or a new domain without a file. Returns its
    /// number, or `None` if it is not open yet and `create` is false.
    ///
    /// # Errors
    /// [`CardError::TooMany`].
    pub fn open_xrcd(&self, file: Option<(u64, u64)>, create: bool) -> Result<Option<u32>, CardError> {
        self.command(|engine| {
            let mut open = engine.xrcds.iter_mut();
            let known = open.find(|(_, domain)| file.is_some() && domain.file == file);
            if let Some((&number, domain)) = known {
                domain.openers += 1;
                return Ok(Some(number));
            }
            if !create {
                return Ok(None);
            }
            within("XRC domains", engine.xrcds.len(), self.limits().max_xrcd)?;
            let number = self.number(|number| engine.xrcds.contains_key(&number));
            engine.xrcds.insert(number, XrcDomain { file, openers: 1, users: 0 });
            Ok(Some(number))
        })
    }

    /// Returns whether the XRC domain of a file is open.
    pub fn has_xrcd(&self, file: (u64, u64)) -> bool {
        self.command(|engine| engine.xrcds.values().any(|domain| domain.file == Some(file)))
    }

    /// Closes an XRC domain. The last close destroys it.
    ///
    /// # Errors
    /// [`CardError::NotFound`]; [`CardError::Busy`] at the last close while queue pairs or shared receive queues are in
    /// it.
    pub fn close_xrcd(&self, xrcd: u32) -> Result<(), CardError> {
        self.command(|engine| {
            let domain = engine.xrcds.get_mut(&xrcd).ok_or(missing(XRCD, xrcd))?;
            match *domain {
                XrcDomain { openers: 1, users: 0, .. } => drop(engine.xrcds.remove(&xrcd)),
                XrcDomain { openers: 1, users, .. } => {
                    return Err(CardError::Busy { what: XRCD, number: xrcd, users });
                }
                _ => domain.openers -= 1,
            }
            Ok(())
        })
    }

    /// Opens an XRC target once more; it must be destroyed as often. Returns its configuration.
    ///
    /// # Errors
    /// [`CardError::NotFound`].
    pub fn open_qp(&self, qpn: u32, xrcd: u32) -> Result<QpConfig, CardError> {
        self.command(|engine| {
            let qp = engine.qps.get_mut(&qpn).filter(|qp| qp.endpoint.config.xrcd == Some(xrcd));
            let qp = qp.ok_or(missing(QP, qpn))?;
            qp.openers += 1;
            Ok(qp.endpoint.config)
        })
    }
}
