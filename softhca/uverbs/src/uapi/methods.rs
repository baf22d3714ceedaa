//! The methods of the kernel that the library has, each with its attributes: `uverbs_std_types*.c` of
//! `drivers/infiniband/core`, and `devx.c`, `dm.c`, `main.c` and `std_types.c` of `drivers/infiniband/hw/mlx5`.

use super::devx::{attr as devx, method as devx_method, object as devx_object};
use super::ioctl::{DRIVER, attr, method, object};
use super::mlx5::AllocUcontextResp;

/// The type of an attribute's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// Bytes of the program; additional ones must be zero if `is_open`.
    Input {
        is_open: bool,
    },
    /// `UVERBS_ATTR_FLAGS_IN`: 8 bytes, or 4 of older programs.
    Flags,
    /// Room for an answer.
    Output {
        is_open: bool,
    },
    /// The handle of an object of this kind; of any kind if `None`.
    Object(Option<u16>),
    /// Room for a new handle, or for the descriptor of a new file.
    New,
    File(File),
    /// The descriptor of a file of memory (`UVERBS_ATTR_RAW_FD`).
    Descriptor,
}

/// The kinds of event files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum File {
    Completions,
    Asynchronous,
    DevxAnswers,
    DevxEvents,
}

/// An attribute of a method.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) id: u16,
    pub(crate) value: Value,
    /// The least and the greatest length in bytes.
    pub(crate) min: u16,
    pub(crate) max: u16,
    pub(crate) is_needed: bool,
}

impl Spec {
    const fn optional(self) -> Self {
        Spec { is_needed: false, ..self }
    }
}

const fn spec(id: u16, value: Value, min: u16, max: u16) -> Spec {
    Spec { id, value, min, max, is_needed: true }
}

/// `UVERBS_ATTR_PTR_IN`, of a type.
const fn input(id: u16, bytes: u16) -> Spec {
    spec(id, Value::Input { is_open: false }, bytes, bytes)
}

/// `UVERBS_ATTR_PTR_IN` of at least some bytes (`UVERBS_ATTR_MIN_SIZE`).
const fn input_from(id: u16, min: u16) -> Spec {
    spec(id, Value::Input { is_open: false }, min, u16::MAX)
}

/// `UVERBS_ATTR_CONST_IN`.
const fn constant(id: u16) -> Spec {
    input(id, 8)
}

const fn flags(id: u16) -> Spec {
    spec(id, Value::Flags, 4, 8)
}

const fn output(id: u16, bytes: u16) -> Spec {
    spec(id, Value::Output { is_open: false }, bytes, bytes)
}

const fn output_from(id: u16, min: u16) -> Spec {
    spec(id, Value::Output { is_open: false }, min, u16::MAX)
}

/// `UVERBS_ATTR_STRUCT`: a structure of `min` bytes, which newer programs may have extended.
const fn output_struct(id: u16, min: u16) -> Spec {
    spec(id, Value::Output { is_open: true }, min, min)
}

const fn handle(id: u16, kind: u16) -> Spec {
    spec(id, Value::Object(Some(kind)), 0, 0)
}

const fn any(id: u16) -> Spec {
    spec(id, Value::Object(None), 0, 0)
}

const fn new(id: u16) -> Spec {
    spec(id, Value::New, 0, 0)
}

const fn file(id: u16, kind: File) -> Spec {
    spec(id, Value::File(kind), 0, 0)
}

const fn descriptor(id: u16) -> Spec {
    spec(id, Value::Descriptor, 0, 0)
}

/// `UVERBS_ATTR_UHW`: the driver's parts.
const UHW_IN: Spec = input_from(attr::UHW_IN, 0).optional();
const UHW_OUT: Spec = output_from(attr::UHW_OUT, 0).optional();
/// Bytes of the header of a DEVX command (`general_obj_in_cmd_hdr`), and of its answer.
const DEVX_HEADER: u16 = 16;
/// Bytes of `struct ib_uverbs_qp_cap`.
const CAP: u16 = 20;
/// `UVERBS_OBJECT_RWQ_IND_TBL`, of which the card has none.
const INDIRECTION_TABLE: u16 = 11;

/// An object, one of its methods, and that method's attributes.
type Method = (u16, u16, &'static [Spec]);

/// Returns the attributes of a method; `None` if the library lacks it.
pub(crate) fn attributes_of(object: u16, method: u16) -> Option<&'static [Spec]> {
    let of_object = [DEVICE, CORE, REGIONS, QUEUES, DRIVERS, DEVX].into_iter().flatten();
    of_object.copied().find(|(of, number, _)| (*of, *number) == (object, method)).map(|(_, _, specs)| specs)
}

const CORE: &[Method] = &[
    (object::ASYNC_EVENT, method::ASYNC_EVENT_ALLOC, &[new(attr::ASYNC_EVENT_FD)]),
    (object::PD, method::ONLY_DESTROY, &[handle(attr::HANDLE, object::PD)]),
    (object::AH, method::ONLY_DESTROY, &[handle(attr::HANDLE, object::AH)]),
    (object::MW, method::ONLY_DESTROY, &[handle(attr::HANDLE, object::MW)]),
    (object::XRCD, method::ONLY_DESTROY, &[handle(attr::HANDLE, object::XRCD)]),
    (object::DM, method::DM_FREE, &[handle(attr::HANDLE, object::DM)]),
    (
        object::DM,
        method::DM_ALLOC,
        &[
            new(attr::HANDLE),
            input(attr::DM_LENGTH, 8),
            input(attr::DM_ALIGNMENT, 4),
            output(attr::DM_START_OFFSET, 8),
            output(attr::DM_PAGE_INDEX, 2).optional(),
            constant(attr::DM_TYPE).optional(),
        ],
    ),
];

const DEVICE: &[Method] = &[
    (
        object::DEVICE,
        method::INVOKE_WRITE,
        &[
            constant(attr::WRITE_CMD),
            input_from(attr::CORE_IN, 4).optional(),
            output_from(attr::CORE_OUT, 0).optional(),
            UHW_IN,
            UHW_OUT,
        ],
    ),
    (
        object::DEVICE,
        method::GET_CONTEXT,
        &[
            output(attr::NUM_COMP_VECTORS, 4).optional(),
            output(attr::CORE_SUPPORT, 8).optional(),
            UHW_IN,
            UHW_OUT,
        ],
    ),
    (
        object::DEVICE,
        method::QUERY_CONTEXT,
        &[
            output(attr::NUM_COMP_VECTORS, 4).optional(),
            output(attr::CORE_SUPPORT, 8).optional(),
            // All of `struct mlx5_ib_alloc_ucontext_resp`, up to `dump_fill_mkey`.
            output_struct(attr::QUERY_CONTEXT_UCTX, size_of::<AllocUcontextResp>() as u16),
        ],
    ),
    // Up to `reserved` of `struct ib_uverbs_query_port_resp_ex`.
    (
        object::DEVICE,
        method::QUERY_PORT,
        &[constant(attr::QUERY_PORT_NUM), output_struct(attr::QUERY_PORT_RESP, 44)],
    ),
    (
        object::DEVICE,
        method::QUERY_GID_TABLE,
        &[
            constant(attr::GID_TABLE_ENTRY_SIZE),
            flags(attr::GID_TABLE_FLAGS).optional(),
            output_from(attr::GID_TABLE_ENTRIES, 0),
            output(attr::GID_TABLE_NUM_ENTRIES, 8),
        ],
    ),
    (
        object::DEVICE,
        method::QUERY_GID_ENTRY,
        &[
            constant(attr::GID_ENTRY_PORT),
            constant(attr::GID_ENTRY_INDEX),
            flags(attr::GID_ENTRY_FLAGS),
            output_struct(attr::GID_ENTRY_RESP, 32),
        ],
    ),
];

const REGIONS: &[Method] = &[
    (object::MR, method::MR_DESTROY, &[handle(attr::HANDLE, object::MR)]),
    (
        object::MR,
        method::MR_ADVISE,
        &[
            handle(attr::ADVISE_PD, object::PD),
            constant(attr::ADVISE_ADVICE),
            flags(attr::ADVISE_FLAGS),
            input_from(attr::ADVISE_SGES, 16),
        ],
    ),
    (
        object::MR,
        method::MR_QUERY,
        &[
            handle(attr::HANDLE, object::MR),
            output(attr::MR_QUERY_LKEY, 4),
            output(attr::MR_QUERY_RKEY, 4),
            output(attr::MR_QUERY_LENGTH, 8),
            output(attr::MR_QUERY_IOVA, 8).optional(),
        ],
    ),
    (
        object::MR,
        method::MR_DM_REG,
        &[
            new(attr::HANDLE),
            input(attr::DM_MR_OFFSET, 8),
            input(attr::DM_MR_LENGTH, 8),
            handle(attr::DM_MR_PD, object::PD),
            flags(attr::DM_MR_ACCESS).optional(),
            handle(attr::DM_MR_DM, object::DM),
            output(attr::DM_MR_LKEY, 4),
            output(attr::DM_MR_RKEY, 4),
        ],
    ),
    (
        object::MR,
        method::MR_REG_DMABUF,
        &[
            new(attr::HANDLE),
            handle(attr::DMABUF_PD, object::PD),
            input(attr::DMABUF_OFFSET, 8),
            input(attr::DMABUF_LENGTH, 8),
            input(attr::DMABUF_IOVA, 8),
            input(attr::DMABUF_FD, 4),
            flags(attr::DMABUF_ACCESS).optional(),
            output(attr::DMABUF_LKEY, 4),
            output(attr::DMABUF_RKEY, 4),
        ],
    ),
    (
        object::MR,
        method::MR_REG,
        &[
            new(attr::HANDLE),
            handle(attr::REG_MR_PD, object::PD),
            input(attr::REG_MR_IOVA, 8),
            input(attr::REG_MR_ADDR, 8).optional(),
            input(attr::REG_MR_LENGTH, 8),
            flags(attr::REG_MR_ACCESS),
            descriptor(attr::REG_MR_FD).optional(),
            input(attr::REG_MR_FD_OFFSET, 8).optional(),
            output(attr::REG_MR_LKEY, 4),
            output(attr::REG_MR_RKEY, 4),
        ],
    ),
];

const QUEUES: &[Method] = &[
    (object::CQ, method::DESTROY, &[handle(attr::HANDLE, object::CQ), output(attr::DESTROY_RESP, 8)]),
    (object::QP, method::DESTROY, &[handle(attr::HANDLE, object::QP), output(attr::DESTROY_RESP, 4)]),
    (object::SRQ, method::DESTROY, &[handle(attr::HANDLE, object::SRQ), output(attr::DESTROY_RESP, 4)]),
    (
        object::CQ,
        method::CREATE,
        &[
            new(attr::HANDLE),
            input(attr::CQ_CQE, 4),
            input(attr::CQ_USER_HANDLE, 8),
            file(attr::CQ_COMP_CHANNEL, File::Completions).optional(),
            input(attr::CQ_COMP_VECTOR, 4),
            flags(attr::CQ_FLAGS).optional(),
            output(attr::CQ_RESP_CQE, 4),
            file(attr::CQ_EVENT_FD, File::Asynchronous).optional(),
            UHW_IN,
            UHW_OUT,
        ],
    ),
    (
        object::QP,
        method::CREATE,
        &[
            new(attr::HANDLE),
            handle(attr::QP_XRCD, object::XRCD).optional(),
            handle(attr::QP_PD, object::PD).optional(),
            handle(attr::QP_SRQ, object::SRQ).optional(),
            handle(attr::QP_SEND_CQ, object::CQ).optional(),
            handle(attr::QP_RECV_CQ, object::CQ).optional(),
            handle(attr::QP_IND_TABLE, INDIRECTION_TABLE).optional(),
            input(attr::QP_USER_HANDLE, 8),
            spec(attr::QP_CAP, Value::Input { is_open: true }, CAP, CAP),
            constant(attr::QP_TYPE),
            flags(attr::QP_FLAGS).optional(),
            input(attr::QP_SOURCE_QPN, 4).optional(),
            file(attr::QP_EVENT_FD, File::Asynchronous).optional(),
            output_struct(attr::QP_RESP_CAP, CAP),
            output(attr::QP_RESP_NUM, 4),
            UHW_IN,
            UHW_OUT,
        ],
    ),
    (
        object::SRQ,
        method::CREATE,
        &[
            new(attr::HANDLE),
            handle(attr::SRQ_PD, object::PD),
            handle(attr::SRQ_XRCD, object::XRCD).optional(),
            handle(attr::SRQ_CQ, object::CQ).optional(),
            input(attr::SRQ_USER_HANDLE, 8),
            input(attr::SRQ_MAX_WR, 4),
            input(attr::SRQ_MAX_SGE, 4),
            input(attr::SRQ_LIMIT, 4),
            input(attr::SRQ_MAX_NUM_TAGS, 4).optional(),
            constant(attr::SRQ_TYPE),
            file(attr::SRQ_EVENT_FD, File::Asynchronous).optional(),
            output(attr::SRQ_RESP_MAX_WR, 4),
            output(attr::SRQ_RESP_MAX_SGE, 4),
            output(attr::SRQ_RESP_NUM, 4).optional(),
            UHW_IN,
            UHW_OUT,
        ],
    ),
];

const DRIVERS: &[Method] = &[
    (
        object::PD,
        method::PD_QUERY,
        &[handle(attr::PD_QUERY_HANDLE, object::PD), output(attr::PD_QUERY_PDN, 4)],
    ),
    (
        object::DM,
        method::DM_MAP_OP_ADDR,
        &[handle(DRIVER, object::DM), input(DRIVER + 1, 1), output(DRIVER + 2, 8), output(DRIVER + 3, 2)],
    ),
    (
        object::DM,
        method::DM_QUERY,
        &[
            handle(attr::DM_QUERY_HANDLE, object::DM),
            output(attr::DM_QUERY_START_OFFSET, 8),
            output(attr::DM_QUERY_PAGE_INDEX, 2),
            output(attr::DM_QUERY_LENGTH, 8),
        ],
    ),
    (
        object::UAR,
        method::UAR_ALLOC,
        &[
            new(attr::UAR_HANDLE),
            constant(attr::UAR_TYPE),
            output(attr::UAR_MMAP_OFFSET, 8),
            output(attr::UAR_MMAP_LENGTH, 4),
            output(attr::UAR_PAGE_ID, 4),
        ],
    ),
    (object::UAR, method::UAR_DESTROY, &[handle(attr::UAR_HANDLE, object::UAR)]),
];

const DEVX: &[Method] = &[
    (
        devx_object::DEVX,
        devx_method::OTHER,
        &[input_from(devx::OTHER_IN, DEVX_HEADER), output_from(devx::OTHER_OUT, DEVX_HEADER)],
    ),
    (devx_object::DEVX, devx_method::QUERY_UAR, &[input(DRIVER, 4), output(DRIVER + 1, 4)]),
    (devx_object::DEVX, devx_method::QUERY_EQN, &[input(devx::EQN_VECTOR, 4), output(devx::EQN_NUMBER, 4)]),
    (
        devx_object::DEVX,
        devx_method::SUBSCRIBE_EVENT,
        &[
            file(devx::SUBSCRIBE_FD, File::DevxEvents),
            handle(devx::SUBSCRIBE_OBJECT, devx_object::DEVX_OBJ).optional(),
            input_from(devx::SUBSCRIBE_EVENTS, 2),
            input(devx::SUBSCRIBE_EVENTFD, 4).optional(),
            input(devx::SUBSCRIBE_COOKIE, 8).optional(),
        ],
    ),
    (
        devx_object::DEVX_OBJ,
        devx_method::OBJ_CREATE,
        &[new(devx::HANDLE), input_from(devx::OBJ_IN, DEVX_HEADER), output_from(devx::OBJ_OUT, DEVX_HEADER)],
    ),
    (
        devx_object::DEVX_OBJ,
        devx_method::OBJ_MODIFY,
        &[any(devx::HANDLE), input_from(devx::OBJ_IN, DEVX_HEADER), output_from(devx::OBJ_OUT, DEVX_HEADER)],
    ),
    (
        devx_object::DEVX_OBJ,
        devx_method::OBJ_QUERY,
        &[any(devx::HANDLE), input_from(devx::OBJ_IN, DEVX_HEADER), output_from(devx::OBJ_OUT, DEVX_HEADER)],
    ),
    (
        devx_object::DEVX_OBJ,
        devx_method::OBJ_ASYNC_QUERY,
        &[
            any(devx::HANDLE),
            input_from(devx::OBJ_IN, DEVX_HEADER),
            file(devx::ASYNC_QUERY_FD, File::DevxAnswers),
            input(devx::ASYNC_QUERY_WR_ID, 8),
            constant(devx::ASYNC_QUERY_OUT_LEN),
        ],
    ),
    (devx_object::DEVX_OBJ, devx_method::OBJ_DESTROY, &[handle(devx::HANDLE, devx_object::DEVX_OBJ)]),
    (
        devx_object::DEVX_UMEM,
        devx_method::UMEM_REG,
        &[
            new(devx::HANDLE),
            input(devx::UMEM_ADDR, 8),
            input(devx::UMEM_LEN, 8),
            flags(devx::UMEM_ACCESS).optional(),
            output(devx::UMEM_ID, 4),
            constant(devx::UMEM_PAGE_SIZES).optional(),
            descriptor(devx::UMEM_DMABUF_FD).optional(),
        ],
    ),
    (devx_object::DEVX_UMEM, devx_method::UMEM_DEREG, &[handle(devx::HANDLE, devx_object::DEVX_UMEM)]),
    (devx_object::DEVX_ASYNC_CMD_FD, devx_method::FD_ALLOC, &[new(devx::HANDLE)]),
    (
        devx_object::DEVX_ASYNC_EVENT_FD,
        devx_method::FD_ALLOC,
        &[new(devx::HANDLE), flags(devx::EVENT_FD_FLAGS)],
    ),
];
