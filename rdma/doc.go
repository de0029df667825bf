// Package rdma is the fabric contract: a small, verbs-shaped interface between
// the engine and the network that carries its READs, WRITEs, atomics and RPCs.
// Implementations, called providers, are in the subpackages. One conformance
// suite, rdma/rdmatest, tests all of them against this page.
//
// The primitive is the [Batch]: work requests posted to one connection with
// one doorbell and awaited together. One batch is one round on that
// connection; rounds, not bytes, are what a remote read costs. Beside it a
// [Conn] carries one request/response RPC at a time to the handler of the
// server.
//
// # Ordering
//
// A provider promises no order of the 8-byte words of a READ unless it states
// one: words may be fetched in any order while writers run. A provider whose
// connections report InOrder loads the words of one READ in ascending address
// order, then loads the first word once more into [WR.Tail], so that an equal
// header before and after the body proves that the body is not torn. Work
// requests of one batch take effect in any order relative to each other, unless
// it is [Batch.Ordered]: then each takes effect before the next one begins.
// Every 8-byte word is read and written whole.
//
// # Access
//
// [Endpoint.Register] lets every peer use a region in the same ways. A data server
// registers its tables for reading only. [Endpoint.Grant] lets one peer write, and
// [Endpoint.Revoke] takes everything from a peer, its connection included. When Revoke
// has returned, nothing of that peer takes effect any more, however long it was
// stopped, and the server may repair what the peer has left behind. A peer is one
// connection; a process may have others. Over verbs those could use what was granted to
// the one that was revoked, if the process passed its keys on (see package verbs).
//
// Atomics are atomic among each other; on some devices they are not with respect to the
// server's processor.
//
// # Failure
//
// An access outside a registered region, or one its grant forbids, completes
// with [StatusAccess]; it touches nothing and does not harm the server. When
// the peer is gone, posted requests complete with [StatusPeerDown] and every
// later call on the connection returns [ErrPeerDown]. The caller must dial
// again.
package rdma
