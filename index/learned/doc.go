// Package learned is the ordered index: a B-link tree on the server and a learned
// cache at each client, after XStore (Wei et al., "Fast RDMA-based Ordered
// Key-Value Store using Remote Learned Cache", OSDI 2020, §4–§5).
//
// The server half ([Server]) has a B-link tree with leaves in the region
// (package tree), and a trainer, which publishes models of the addresses of the
// leaves (package model) in the same region. The client half ([Client]) keeps
// as many models as its budget allows, and finds a leaf in three steps:
// predict, translate, READ. Models are hints; the fence keys of the leaf that
// was READ are the proof. A wrong model costs rounds and then a fallback, and
// never changes an answer.
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
