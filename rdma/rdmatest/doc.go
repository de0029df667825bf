// Package rdmatest is the conformance suite of the fabric. Every provider runs
// it with [Run], and the engine may rely on what the suite checks.
//
//	func TestConformance(t *testing.T) {
//		rdmatest.Run(t, func(t testing.TB) rdmatest.Fixture {
//			return rdmatest.Fixture{Provider: inproc.New(inproc.Options{})}
//		})
//	}
//
// Where the contract leaves a choice, the suite accepts every choice. Where the
// contract is brief, the suite defines the details:
//
//   - A transfer of no bytes, or of more than rdma.MaxReadBytes, is an access
//     violation, as is one that straddles two segments of a region.
//   - Several batches may be in flight on one connection and be awaited in any
//     order; a call and batches may be in flight together.
//   - A region registered after a client connected is readable by that client.
//   - A READ posted after a store was made sees it, or a later one.
//   - Counters: a round for each batch that was posted; a verb for each work
//     request of it, however it completed; bytes only where they moved; RPCBytes
//     of request and response; Faults for each request completed with an error.
//     An endpoint counts RPCs, and verbs either all or none of them.
//   - A response above the bound is refused with rdma.ErrTooLarge and the
//     request may still be answered with a smaller one.
//   - Detecting a closed or killed endpoint may take some time, but a call to it fails with rdma.ErrPeerDown without a deadline.
//   - After an endpoint is closed, another one may listen at its address.
//
// All randomness comes from one seed, printed on failure and read back from
// DRTMX_SEED.
package rdmatest
