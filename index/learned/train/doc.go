// Package train keeps the published models of a learned ordered index in step
// with its tree: the server half's background work. It decides which leaves
// belong to one sub-model, fits sub-models to the leaves, and publishes them in
// the region of the tree for clients to READ.
//
//	root ──► generation ──► chunks: starts and pointers of sub-models ──► sub-model blocks
//
// All are blocks (internal/block) in the layout of package model. The root has the
// geometry of leaves and points to the current generation, which is one partition of
// the keys into sub-models. Retraining writes a new sub-model block, swaps one
// pointer and frees the old block. Expansion and shrinking train a new generation
// while the old one serves, then swap the root's pointer. A client with an old part
// notices when its predictions miss.
package train
