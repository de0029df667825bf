//go:build verbs

// The calls of libibverbs and librdmacm that this package needs, in a shape
// that costs one crossing from Go for a whole list of work requests or
// completions. Functions that can fail return an errno, or 0.

#ifndef DRTMX_VERBS_NATIVE_H
#define DRTMX_VERBS_NATIVE_H

#include <stddef.h>
#include <stdint.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

enum { VB_READ = 1, VB_WRITE, VB_CAS, VB_FAA, VB_SEND };

// A work request of the send queue: one local piece, one remote address.
struct vb_wr {
	uint64_t id, remote, local, arg, swap;
	uint32_t rkey, lkey, bytes;
	uint8_t op, signaled, inlined, fenced;
};

// A completion.
struct vb_wc {
	uint64_t id;
	uint32_t status, bytes;
};

struct vb_cq {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
};

struct vb_qp {
	struct rdma_cm_id *id;
	struct ibv_qp *qp;
	struct ibv_send_wr *wrs;
	struct ibv_sge *sges;
	uint32_t depth, max_inline;
};

// What an event of the connection manager says.
struct vb_event {
	struct rdma_cm_id *id;
	int kind, status;
	uint8_t initiator_depth, responder_resources;
	uint8_t data[64]; // the first of the private data
	uint32_t bytes;
};

int vb_device(struct ibv_context *v, uint32_t *rd_atom, uint32_t *max_qp_wr, uint32_t *max_cqe, uint32_t *atomics);

int vb_cq_open(struct ibv_context *v, int entries, struct vb_cq *out);
int vb_cq_resize(struct vb_cq *c, int entries);
int vb_cq_poll(struct vb_cq *c, struct vb_wc *out, int n, int tries);
int vb_cq_arm(struct vb_cq *c);
int vb_cq_event(struct vb_cq *c);
void vb_cq_close(struct vb_cq *c);

int vb_mr_open(struct ibv_pd *pd, uint64_t addr, uint64_t bytes, uint64_t iova, int access, struct ibv_mr **out);
int vb_pd_open(struct ibv_context *v, struct ibv_pd **out);

int vb_qp_open(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_cq *cq, uint32_t sends, uint32_t receives, struct vb_qp *out);
int vb_qp_post(struct vb_qp *q, const struct vb_wr *w, int n);
int vb_qp_receive(struct vb_qp *q, uint64_t id, uint64_t addr, uint32_t stride, uint32_t slots, uint32_t lkey, uint32_t first, uint32_t n);
void vb_qp_close(struct vb_qp *q);

int vb_cm_open(struct rdma_event_channel **out);
int vb_cm_id(struct rdma_event_channel *ch, struct rdma_cm_id **out);
int vb_cm_event(struct rdma_event_channel *ch, struct vb_event *out);
int vb_cm_resolve(struct rdma_cm_id *id, const uint8_t *ip, int ipbytes, uint16_t port, uint32_t scope, int timeout_ms);
int vb_cm_route(struct rdma_cm_id *id, int timeout_ms);
int vb_cm_bind(struct rdma_cm_id *id, const uint8_t *ip, int ipbytes, uint16_t port, uint32_t scope);
int vb_cm_listen(struct rdma_cm_id *id, int backlog);
int vb_cm_ack_timeout(struct rdma_cm_id *id, uint8_t exponent);
uint16_t vb_cm_port(struct rdma_cm_id *id);
int vb_cm_connect(struct rdma_cm_id *id, const uint8_t *data, int bytes, int initiator_depth, int responder_resources);
int vb_cm_accept(struct rdma_cm_id *id, const uint8_t *data, int bytes, int initiator_depth, int responder_resources);
int vb_cm_reject(struct rdma_cm_id *id, const uint8_t *data, int bytes);
int vb_cm_disconnect(struct rdma_cm_id *id);

#endif
