// Package learned is the ordered index: a B-link tree on the server and a learned
// cache at each client, after XStore (Wei et al., "Fast RDMA-based Ordered Key-Value
// Store using Remote Learned Cache", OSDI 2020, §4–§5). This package has the server
// half ([Server]), which chooses the kind of key and the place of rows. Its parts are
//
//	leaf    the layout of leaves, rows and fences
//	inner   the layout of inner nodes, which are published on demand
//	model   the models of leaves' addresses, and the layout of what is published
//	tree    the server's B-link tree, whose leaves are in the region
//	train   the trainer, which publishes models in the same region
//	read    the client half, which keeps models, or inner nodes, and READs leaves
//
// The two halves share only leaf, inner and model.
package learned
