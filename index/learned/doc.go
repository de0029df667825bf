// Package learned is the ordered index: a B-link tree on the server and a learned
// cache at each client, after XStore (Wei et al., "Fast RDMA-based Ordered
// Key-Value Store using Remote Learned Cache", OSDI 2020, §4–§5).
//
// The server half ([Server]) is a B-link tree with leaves in the region
// (package tree), and a trainer that publishes models of where the leaves are
// (package model) beside them. The client half ([Client]) keeps as many of
// the models as its budget allows and finds a leaf with them: predict,
// translate, READ. Models are hints; the fence keys of the leaf that was read
// prove. A wrong model, whatever the reason, costs rounds and then a
// fallback, never an answer.
//
// # What is published
//
//	root ──► generation ──► chunks: starts and pointers of sub-models ──► sub-model blocks
//
// All are blocks (internal/block). The root names the geometry of leaves and
// the current generation; a generation is one partition of the key space into
// sub-models. Retraining writes a new sub-model block, swaps one pointer and
// frees the old block. Expansion and shrinking train a new generation while
// the old one serves, then swap the root's pointer. A client that holds an old
// part finds out by missing: it chases right links, marks the part stale, and
// [Client.Maintain] fetches what is current.
package learned
