//go:build verbs

#include "native.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

static int nonblocking(int fd) {
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return errno;
	return 0;
}

// The functions of librdmacm return -1 and set errno, some of libibverbs
// return it, and a few leave it zero.
static int cm_result(int r) {
	if (r == 0)
		return 0;
	return errno ? errno : EIO;
}

int vb_device(struct ibv_context *v, uint32_t *rd_atom, uint32_t *max_qp_wr, uint32_t *max_cqe, uint32_t *atomics) {
	struct ibv_device_attr a;
	int err = ibv_query_device(v, &a);
	if (err)
		return err;
	*rd_atom = a.max_qp_rd_atom < a.max_qp_init_rd_atom ? a.max_qp_rd_atom : a.max_qp_init_rd_atom;
	*max_qp_wr = a.max_qp_wr;
	*max_cqe = a.max_cqe;
	*atomics = a.atomic_cap != IBV_ATOMIC_NONE;
	return 0;
}

int vb_cq_open(struct ibv_context *v, int entries, struct vb_cq *out) {
	out->channel = ibv_create_comp_channel(v);
	if (!out->channel)
		return errno ? errno : ENOMEM;
	int err = nonblocking(out->channel->fd);
	if (!err) {
		out->cq = ibv_create_cq(v, entries, NULL, out->channel, 0);
		if (out->cq)
			return 0;
		err = errno ? errno : ENOMEM;
	}
	ibv_destroy_comp_channel(out->channel);
	out->channel = NULL;
	return err;
}

int vb_cq_resize(struct vb_cq *c, int entries) { return ibv_resize_cq(c->cq, entries); }

// Polls until there are completions, at most `tries` times. The result is
// their number, or -1.
int vb_cq_poll(struct vb_cq *c, struct vb_wc *out, int n, int tries) {
	struct ibv_wc wc[32];
	if (n > 32)
		n = 32;
	for (; tries > 0; tries--) {
		int got = ibv_poll_cq(c->cq, n, wc);
		if (got < 0)
			return -1;
		for (int i = 0; i < got; i++) {
			out[i].id = wc[i].wr_id;
			out[i].status = wc[i].status;
			out[i].bytes = wc[i].byte_len;
		}
		if (got > 0)
			return got;
#if defined(__x86_64__)
		__builtin_ia32_pause();
#endif
	}
	return 0;
}

int vb_cq_arm(struct vb_cq *c) { return ibv_req_notify_cq(c->cq, 0); }

// Takes one event off the channel: EAGAIN if there is none.
int vb_cq_event(struct vb_cq *c) {
	struct ibv_cq *cq;
	void *context;
	if (ibv_get_cq_event(c->channel, &cq, &context))
		return errno ? errno : EIO;
	ibv_ack_cq_events(cq, 1);
	return 0;
}

void vb_cq_close(struct vb_cq *c) {
	if (c->cq)
		ibv_destroy_cq(c->cq);
	if (c->channel)
		ibv_destroy_comp_channel(c->channel);
	c->cq = NULL;
	c->channel = NULL;
}

int vb_pd_open(struct ibv_context *v, struct ibv_pd **out) {
	*out = ibv_alloc_pd(v);
	return *out ? 0 : errno ? errno : ENOMEM;
}

int vb_mr_open(struct ibv_pd *pd, uint64_t addr, uint64_t bytes, uint64_t iova, int access, struct ibv_mr **out) {
	*out = ibv_reg_mr_iova(pd, (void *)(uintptr_t)addr, bytes, iova, access);
	return *out ? 0 : errno ? errno : ENOMEM;
}

int vb_qp_open(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_cq *cq, uint32_t sends, uint32_t receives, struct vb_qp *out) {
	// Inline data is a gift: ask for less until the device agrees.
	static const uint32_t wanted[] = {256, 128, 64, 0};
	int err = EINVAL;
	for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
		struct ibv_qp_init_attr a = {
			.send_cq = cq,
			.recv_cq = cq,
			.qp_type = IBV_QPT_RC,
			.cap = {
				.max_send_wr = sends,
				.max_recv_wr = receives,
				.max_send_sge = 1,
				.max_recv_sge = 1,
				.max_inline_data = wanted[i],
			},
		};
		errno = 0;
		if (rdma_create_qp(id, pd, &a) == 0) {
			out->id = id;
			out->qp = id->qp;
			out->depth = sends;
			out->max_inline = a.cap.max_inline_data;
			out->wrs = calloc(sends, sizeof *out->wrs);
			out->sges = calloc(sends, sizeof *out->sges);
			if (out->wrs && out->sges)
				return 0;
			vb_qp_close(out);
			return ENOMEM;
		}
		err = errno ? errno : EINVAL;
	}
	return err;
}

static void fill(struct vb_qp *q, struct ibv_send_wr *s, struct ibv_sge *g, const struct vb_wr *w) {
	g->addr = w->local;
	g->length = w->bytes;
	g->lkey = w->lkey;
	s->wr_id = w->id;
	s->sg_list = g;
	s->num_sge = w->bytes ? 1 : 0;
	s->send_flags = (w->signaled ? IBV_SEND_SIGNALED : 0) | (w->fenced ? IBV_SEND_FENCE : 0) |
		(w->inlined && w->bytes <= q->max_inline ? IBV_SEND_INLINE : 0);
	switch (w->op) {
	case VB_READ:
	case VB_WRITE:
		s->opcode = w->op == VB_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
		s->wr.rdma.remote_addr = w->remote;
		s->wr.rdma.rkey = w->rkey;
		break;
	case VB_CAS:
	case VB_FAA:
		s->opcode = w->op == VB_CAS ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
		s->wr.atomic.remote_addr = w->remote;
		s->wr.atomic.rkey = w->rkey;
		s->wr.atomic.compare_add = w->arg;
		s->wr.atomic.swap = w->swap;
		break;
	default:
		s->opcode = IBV_WR_SEND;
	}
}

// Posts n <= depth work requests with one doorbell.
int vb_qp_post(struct vb_qp *q, const struct vb_wr *w, int n) {
	struct ibv_send_wr *bad;
	for (int i = 0; i < n; i++) {
		fill(q, &q->wrs[i], &q->sges[i], &w[i]);
		q->wrs[i].next = i + 1 < n ? &q->wrs[i + 1] : NULL;
	}
	return ibv_post_send(q->qp, q->wrs, &bad);
}

// Posts the n receives from number `first` of a ring of slots at addr. The
// identifier of each is `id` with the slot in its low bits.
int vb_qp_receive(struct vb_qp *q, uint64_t id, uint64_t addr, uint32_t stride, uint32_t slots, uint32_t lkey, uint32_t first, uint32_t n) {
	struct ibv_recv_wr wr[32], *bad;
	struct ibv_sge sge[32];
	while (n > 0) {
		uint32_t k = n < 32 ? n : 32;
		for (uint32_t i = 0; i < k; i++) {
			uint32_t slot = (first + i) % slots;
			sge[i] = (struct ibv_sge){.addr = addr + (uint64_t)slot * stride, .length = stride, .lkey = lkey};
			wr[i] = (struct ibv_recv_wr){
				.wr_id = id | slot,
				.next = i + 1 < k ? &wr[i + 1] : NULL,
				.sg_list = &sge[i],
				.num_sge = 1,
			};
		}
		int err = ibv_post_recv(q->qp, wr, &bad);
		if (err)
			return err;
		first += k;
		n -= k;
	}
	return 0;
}

void vb_qp_close(struct vb_qp *q) {
	if (q->qp)
		rdma_destroy_qp(q->id);
	free(q->wrs);
	free(q->sges);
	q->qp = NULL;
	q->wrs = NULL;
	q->sges = NULL;
}

int vb_cm_open(struct rdma_event_channel **out) {
	errno = 0;
	*out = rdma_create_event_channel();
	if (!*out)
		return errno ? errno : ENODEV;
	int err = nonblocking((*out)->fd);
	if (err) {
		rdma_destroy_event_channel(*out);
		*out = NULL;
	}
	return err;
}

int vb_cm_id(struct rdma_event_channel *ch, struct rdma_cm_id **out) {
	errno = 0;
	return cm_result(rdma_create_id(ch, out, NULL, RDMA_PS_TCP));
}

// Takes one event off the channel, EAGAIN if there is none, and acknowledges
// it at once: destroying an identifier waits for its events.
int vb_cm_event(struct rdma_event_channel *ch, struct vb_event *out) {
	struct rdma_cm_event *e;
	errno = 0;
	if (rdma_get_cm_event(ch, &e))
		return errno ? errno : EIO;
	memset(out, 0, sizeof *out);
	out->id = e->id;
	out->kind = e->event;
	out->status = e->status;
	out->initiator_depth = e->param.conn.initiator_depth;
	out->responder_resources = e->param.conn.responder_resources;
	if (e->param.conn.private_data) {
		out->bytes = e->param.conn.private_data_len;
		if (out->bytes > sizeof out->data)
			out->bytes = sizeof out->data;
		memcpy(out->data, e->param.conn.private_data, out->bytes);
	}
	rdma_ack_cm_event(e);
	return 0;
}

static void address(struct sockaddr_storage *s, const uint8_t *ip, int ipbytes, uint16_t port, uint32_t scope) {
	memset(s, 0, sizeof *s);
	if (ipbytes == 4) {
		struct sockaddr_in *a = (struct sockaddr_in *)s;
		a->sin_family = AF_INET;
		a->sin_port = htons(port);
		memcpy(&a->sin_addr, ip, 4);
		return;
	}
	struct sockaddr_in6 *a = (struct sockaddr_in6 *)s;
	a->sin6_family = AF_INET6;
	a->sin6_port = htons(port);
	a->sin6_scope_id = scope;
	memcpy(&a->sin6_addr, ip, 16);
}

int vb_cm_resolve(struct rdma_cm_id *id, const uint8_t *ip, int ipbytes, uint16_t port, uint32_t scope, int timeout_ms) {
	struct sockaddr_storage s;
	address(&s, ip, ipbytes, port, scope);
	errno = 0;
	return cm_result(rdma_resolve_addr(id, NULL, (struct sockaddr *)&s, timeout_ms));
}

int vb_cm_route(struct rdma_cm_id *id, int timeout_ms) {
	errno = 0;
	return cm_result(rdma_resolve_route(id, timeout_ms));
}

int vb_cm_bind(struct rdma_cm_id *id, const uint8_t *ip, int ipbytes, uint16_t port, uint32_t scope) {
	struct sockaddr_storage s;
	address(&s, ip, ipbytes, port, scope);
	errno = 0;
	return cm_result(rdma_bind_addr(id, (struct sockaddr *)&s));
}

int vb_cm_listen(struct rdma_cm_id *id, int backlog) {
	errno = 0;
	return cm_result(rdma_listen(id, backlog));
}

int vb_cm_ack_timeout(struct rdma_cm_id *id, uint8_t exponent) {
	errno = 0;
	return cm_result(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &exponent, sizeof exponent));
}

uint16_t vb_cm_port(struct rdma_cm_id *id) { return ntohs(rdma_get_src_port(id)); }

static struct rdma_conn_param params(const uint8_t *data, int bytes, int initiator_depth, int responder_resources) {
	return (struct rdma_conn_param){
		.private_data = data,
		.private_data_len = bytes,
		.initiator_depth = initiator_depth,
		.responder_resources = responder_resources,
		.retry_count = 7,
		.rnr_retry_count = 7, // for ever: a slow receiver is not a dead one
	};
}

int vb_cm_connect(struct rdma_cm_id *id, const uint8_t *data, int bytes, int initiator_depth, int responder_resources) {
	struct rdma_conn_param p = params(data, bytes, initiator_depth, responder_resources);
	errno = 0;
	return cm_result(rdma_connect(id, &p));
}

int vb_cm_accept(struct rdma_cm_id *id, const uint8_t *data, int bytes, int initiator_depth, int responder_resources) {
	struct rdma_conn_param p = params(data, bytes, initiator_depth, responder_resources);
	errno = 0;
	return cm_result(rdma_accept(id, &p));
}

int vb_cm_reject(struct rdma_cm_id *id, const uint8_t *data, int bytes) {
	errno = 0;
	return cm_result(rdma_reject(id, data, bytes));
}

int vb_cm_disconnect(struct rdma_cm_id *id) {
	errno = 0;
	return cm_result(rdma_disconnect(id));
}
