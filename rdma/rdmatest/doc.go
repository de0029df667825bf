// Package rdmatest is the conformance suite of the fabric: every provider
// enrols with [Run], and what the suite accepts is what the engine may rely on.
//
//	func TestConformance(t *testing.T) {
//		rdmatest.Run(t, func(t testing.TB) rdmatest.Fixture {
//			return rdmatest.Fixture{Provider: inproc.New(inproc.Options{})}
//		})
//	}
//
// Where the contract leaves a choice the suite accepts every choice, and where
// it is terse the suite decides:
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
//   - A closed or killed endpoint may take some time to be noticed, but a call
//     to it fails with rdma.ErrPeerDown by itself, without a deadline.
//   - After the endpoint closed, its address may be listened at again.
//
// All randomness comes from one seed, printed on failure and read back from
// DRTMX_SEED.
package rdmatest
