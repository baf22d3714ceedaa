/* Builds wire formats with the structs, constants and setters of infiniband/mlx5dv.h, and prints their bytes.
   The test in wire.rs builds the same with our types. The includes are put in front of this text. */
#include <endian.h>
#include <stdio.h>
#include <string.h>

static void show(const char *name, const void *bytes, size_t size)
{
	printf("%s ", name);
	for (size_t i = 0; i < size; i++)
		printf("%02x", ((const unsigned char *)bytes)[i]);
	printf("\n");
}

#define SHOW(name) show(#name, &name, sizeof(name))

static void segments(void)
{
	struct mlx5_wqe_ctrl_seg control, nop;
	struct mlx5_wqe_raddr_seg remote_address = { .raddr = htobe64(0x0102030405060708), .rkey = htobe32(0x11121314) };
	struct mlx5_wqe_data_seg data, terminator;
	struct mlx5_wqe_inl_data_seg inline_data = { .byte_count = htobe32(28 | MLX5_INLINE_SEG) };
	struct mlx5_wqe_atomic_seg atomic = {
		.swap_add = htobe64(0x2122232425262728), .compare = htobe64(0x3132333435363738)
	};

	memset(&control, 0, sizeof(control));
	mlx5dv_set_ctrl_seg(&control, 0x1234, MLX5_OPCODE_SEND_IMM, 0, 0xabcdef,
			    MLX5_WQE_CTRL_CQ_UPDATE | MLX5_WQE_CTRL_SOLICITED | MLX5_WQE_CTRL_FENCE, 0x3f, 0,
			    htobe32(0x01020304));
	memset(&nop, 0, sizeof(nop));
	mlx5dv_set_ctrl_seg(&nop, 0xffff, MLX5_OPCODE_NOP, 0, 0x123456, MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE, 1, 0, 0);
	mlx5dv_set_data_seg(&data, 0x41424344, 0x51525354, 0x6162636465666768);
	mlx5dv_set_data_seg(&terminator, 0, MLX5_INVALID_LKEY, 0);
	SHOW(control);
	SHOW(nop);
	SHOW(remote_address);
	SHOW(data);
	SHOW(terminator);
	SHOW(inline_data);
	SHOW(atomic);
}

static void datagram(void)
{
	struct mlx5_wqe_datagram_seg address_vector;
	struct mlx5_wqe_av *av = &address_vector.av;

	memset(&address_vector, 0, sizeof(address_vector));
	av->key.qkey.qkey = htobe32(0x11112222);
	av->dqp_dct = htobe32(MLX5_EXTENDED_UD_AV | 0x334455);
	av->stat_rate_sl = 2 << 4 | 5;
	av->fl_mlid = 1;
	av->rlid = htobe16(0x6677);
	memcpy(av->rmac, "\1\2\3\4\5\6", 6);
	av->tclass = 7;
	av->hop_limit = 64;
	/* A global route, source GID index 3, flow label 0x12345 (PRM, "UD address vector"). */
	av->grh_gid_fl = htobe32(1u << 30 | 3 << 20 | 0x12345);
	memset(av->rgid, 0xee, 16);
	SHOW(address_vector);
}

static void completions(void)
{
	struct mlx5_cqe64 requester, responder;
	struct mlx5_err_cqe error;

	memset(&requester, 0, sizeof(requester));
	requester.byte_cnt = htobe32(0x1000);
	requester.sop_drop_qpn = htobe32(MLX5_OPCODE_RDMA_READ << 24 | 0x010203);
	requester.wqe_counter = htobe16(0x4567);
	requester.op_own = MLX5_CQE_REQ << 4;
	mlx5dv_set_cqe_owner(&requester, 1);
	SHOW(requester);

	memset(&responder, 0, sizeof(responder));
	responder.flags_rqpn = htobe32(0x0d0e0f);
	responder.imm_inval_pkey = htobe32(0x01020304);
	responder.byte_cnt = htobe32(5);
	responder.sop_drop_qpn = htobe32(0x0a0b0c);
	responder.wqe_counter = htobe16(7);
	responder.op_own = MLX5_CQE_RESP_SEND_IMM << 4 | 1 << 1;
	if (!mlx5dv_get_cqe_se(&responder) || mlx5dv_get_cqe_opcode(&responder) != MLX5_CQE_RESP_SEND_IMM)
		printf("the header reads its own completion otherwise\n");
	SHOW(responder);

	memset(&error, 0, sizeof(error));
	error.vendor_err_synd = 0x88;
	error.syndrome = MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;
	error.s_wqe_opcode_qpn = htobe32(MLX5_OPCODE_RDMA_WRITE << 24 | 0x11);
	error.wqe_counter = htobe16(3);
	error.op_own = MLX5_CQE_REQ_ERR << 4 | MLX5_CQE_OWNER_MASK;
	SHOW(error);
}

static void records(void)
{
	__be32 queue_pair[2];

	queue_pair[MLX5_RCV_DBR] = htobe32(0x12345 & 0xffff);
	queue_pair[MLX5_SND_DBR] = htobe32(0xabcde & 0xffff);
	SHOW(queue_pair);
}

int main(void)
{
	segments();
	datagram();
	completions();
	records();
	return 0;
}
