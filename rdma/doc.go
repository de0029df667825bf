// Package rdma is the fabric contract: a small, verbs-shaped interface
// between the engine and whatever carries its READs, WRITEs, atomics and
// RPCs. Implementations, called providers, live in the subpackages; one
// conformance suite, rdma/rdmatest, holds all of them to this page.
//
// The primitive is the [Batch]: work requests posted to one connection with
// one doorbell and awaited together. One batch is one round on that
// connection; rounds, not bytes, are what a remote read costs. Beside it a
// [Conn] carries one request/response RPC at a time to the handler of the
// server.
//
// # Ordering
//
// No provider promises anything across the 8-byte words of a READ unless it
// says so: words may be fetched in any order while writers run. A provider
// whose connections report InOrder loads the words of one READ in ascending
// address order, then loads the first word once more into [WR.Tail], so that
// a header read before and again after a body proves the body untorn. Work
// requests of one batch complete in any order relative to each other. Every
// 8-byte word is read and written whole.
//
// # Failure
//
// An access outside a registered region, or one its grant forbids, completes
// with [StatusAccess]; it touches nothing and does not harm the server. When
// the peer is gone, posted requests complete with [StatusPeerDown] and every
// later call on the connection returns [ErrPeerDown]; the caller dials anew.
package rdma
