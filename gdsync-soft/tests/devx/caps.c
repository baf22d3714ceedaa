/* Capabilities and the port, by general commands. */
#include "devx.h"

int main(void)
{
    struct ibv_context *context = open_device();
    struct ibv_port_attr port;
    struct ibv_device_attr device;
    uint8_t first[16 + 4096];
    CHECK(ibv_query_port(context, 1, &port) == 0);
    CHECK(ibv_query_device(context, &device) == 0);
    for (unsigned mode = 0; mode < 2; mode++) { /* maximum, current */
        uint8_t in[16] = {0}, out[16 + 4096];
        const unsigned cap = 0x80;
        memset(out, 0xff, sizeof(out));
        put(in, 0, 16, 0x100);
        put(in, 0x30, 16, mode);
        CHECK(mlx5dv_devx_general_cmd(context, in, sizeof(in), out, sizeof(out)) == 0);
        CHECK(status_of(out) == 0 && syndrome_of(out) == 0);
        CHECK(get(out, cap + 0x26b, 5) == 9);                              /* log_bf_reg_size */
        CHECK(get(out, cap + 0x1fc, 4) == 1);                              /* cqe_version */
        CHECK(get(out, cap + 0x1b8, 8) == 1);                              /* num_ports */
        CHECK(1 << get(out, cap + 0x9b, 5) == device.max_qp);              /* log_max_qp */
        CHECK(1 << get(out, cap + 0xdb, 5) == device.max_cq);              /* log_max_cq */
        CHECK(1 << get(out, cap + 0x88, 8) == device.max_qp_wr);           /* log_max_qp_sz */
        CHECK(1 << get(out, cap + 0xc8, 8) == device.max_cqe + 1);         /* log_max_cq_sz */
        CHECK(1 << get(out, cap + 0x14a, 6) == device.max_qp_rd_atom);     /* log_max_ra_req_qp */
        CHECK(1u << get(out, cap + 0x1c3, 5) == port.max_msg_sz);          /* log_max_msg */
        CHECK(get(out, cap + 0x23d, 3) == 7);                              /* ud, uc, rc */
        CHECK(get(out, cap + 0x1b6, 2) == (port.link_layer == IBV_LINK_LAYER_ETHERNET)); /* port_type */
        if (mode == 0)
            memcpy(first, out, sizeof(out));
        else
            CHECK(memcmp(first, out, sizeof(out)) == 0);
    }
    {
        uint8_t in[16] = {0}, out[16 + 4096] = {0};
        put(in, 0, 16, 0x100);
        put(in, 0x30, 16, 3 << 1 | 1); /* atomic */
        CHECK(mlx5dv_devx_general_cmd(context, in, sizeof(in), out, sizeof(out)) == 0);
        CHECK(get(out, 0x80 + 0x90, 16) == 0xf);                           /* all four operations */
        CHECK(get(out, 0x80 + 0xb0, 16) == 12 && get(out, 0x80 + 0xd0, 16) == 12); /* 4 and 8 bytes */
        CHECK(get(out, 0x80 + 0x40, 2) == 1 && get(out, 0x80 + 0x46, 1) == 1); /* results in host order */
        CHECK(get(out, 0x80 + 0x280, 16) == 3 && get(out, 0x80 + 0x2a0, 16) == 3); /* PCI: 4 and 8 bytes */
        /* Options that the card lacks: no Ethernet offload, no MACsec. */
        for (unsigned type = 1; type <= 0x1f; type += 0x1e) {
            memset(out, 0xff, sizeof(out));
            put(in, 0x30, 16, type << 1 | 1);
            CHECK(mlx5dv_devx_general_cmd(context, in, sizeof(in), out, sizeof(out)) == 0);
            for (size_t i = 0; i < sizeof(out); i++)
                CHECK(out[i] == 0);
        }
        put(in, 0x30, 16, 0x3f << 1);
        CHECK(mlx5dv_devx_general_cmd(context, in, sizeof(in), out, sizeof(out)) == EREMOTEIO);
        CHECK(status_of(out) == 3 && syndrome_of(out) != 0);
    }
    {
        uint8_t in[16] = {0}, out[16 + 512] = {0};
        struct ibv_device_attr_ex extended;
        put(in, 0, 16, 0x762); /* QUERY_HCA_VPORT_CONTEXT */
        CHECK(mlx5dv_devx_general_cmd(context, in, sizeof(in), out, sizeof(out)) == 0);
        CHECK(get(out, 0x80 + 0x300, 16) == port.lid);
        CHECK(get(out, 0x80 + 0x1c0, 64) == be64toh(device.node_guid));
        CHECK(get(out, 0x80 + 0x118, 4) == 4); /* active */
        CHECK(ibv_query_device_ex(context, NULL, &extended) == 0);
    }
    /* The GID table by commands: on Ethernet only. */
    for (int i = 0; i <= port.gid_tbl_len; i++) {
        uint8_t in[16] = {0}, out[16 + 32] = {0};
        struct ibv_gid_entry entry;
        put(in, 0, 16, 0x760); /* QUERY_ROCE_ADDRESS */
        put(in, 0x40, 16, (unsigned)i);
        int error = mlx5dv_devx_general_cmd(context, in, sizeof(in), out, sizeof(out));
        if (port.link_layer != IBV_LINK_LAYER_ETHERNET) {
            CHECK(error == EREMOTEIO && status_of(out) == 2);
        } else if (i == port.gid_tbl_len) {
            CHECK(error == EREMOTEIO && status_of(out) == 3);
        } else {
            CHECK(error == 0 && ibv_query_gid_ex(context, 1, (uint32_t)i, &entry, 0) == 0);
            CHECK(memcmp(out + 16, entry.gid.raw, 16) == 0);
            CHECK(get(out, 0x80 + 0xd8, 8) == (entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 2 : 0)); /* roce_version */
            CHECK(get(out, 0x80 + 0xd4, 4) == (i < 2));                    /* roce_l3_type: IPv6, then IPv4 */
            CHECK(memcmp(out + 16 + 18, "\x02\0\0\0", 4) == 0);           /* source_mac: administered locally */
        }
    }
    {
        uint8_t in[16] = {0}, out[16 + 4096] = {0};
        unsigned ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
        put(in, 0, 16, 0x100);
        put(in, 0x30, 16, 4 << 1 | 1); /* RoCE */
        CHECK(mlx5dv_devx_general_cmd(context, in, sizeof(in), out, sizeof(out)) == 0);
        CHECK(get(out, 0x80 + 0xf0, 16) == (ethernet ? (unsigned)port.gid_tbl_len : 0)); /* roce_address_table_size */
        CHECK(get(out, 0x80 + 0xd0, 16) == (ethernet ? 0xc000 : 0));       /* r_roce_min_src_udp_port */
        CHECK(get(out, 0x80 + 0xc0, 16) == (ethernet ? 0xffff : 0));       /* r_roce_max_src_udp_port */
    }
    CHECK(ibv_close_device(context) == 0);
    return 0;
}
