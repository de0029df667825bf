// Package rolex is an ordered index that its clients change themselves, with WRITEs and
// atomics, as in ROLEX (Li et al., FAST 2023): a data server whose processor is busy, or
// weak, takes no part in inserts, updates and deletes.
//
// Leaves are those of the learned index (package leaf): fences and right links, so that a
// client which arrives at a leaf that was split goes right. They lie in a region that the
// writers of the table are granted, and nobody else.
//
// # Lock and version in one word
//
// A leaf's header is a lock, its owner, and a version that never repeats, also when the
// leaf's memory serves again. It changes by CAS only:
//
//	free   0 | dead | 0(13)     | version(49)
//	held   1 | dead | owner(13) | version(49)
//
// A CAS that expects a version proves that the leaf is what was READ, and locks it, in one
// round. The paper locks entries of the leaf table instead, of which two can lead to one leaf
// while a model is retrained.
//
// # A commit
//
// A writer READs the leaves it will change, and then, in two ordered batches:
//
//	lock    CAS of each leaf: free to held; READs of what its answers rest on
//	apply   new leaves, still dead; the intent; CAS of the new leaves: dead to live;
//	        the changed words of each leaf; CAS of each leaf: held to free, one version on
//
// The intent is in a slot of the writer: all changed words, and for each leaf the header
// before and after, under a checksum. Once it is complete the transaction is committed.
//
// # Writers that die
//
// A writer may end between any two words. Others that wait for its locks report them to the
// data server. It first revokes the writer's access, so that nothing of it takes effect any more
// (rdma.Endpoint's Revoke): no time-out proves that a writer is dead. Then it settles: a
// complete intent is applied again, where a leaf still has the header before; every other
// lock of the writer is undone, and its leaf is unchanged, because the intent precedes the
// changes. So a transaction of a dead writer happened as a whole, or not at all, and the
// server knows which.
package rolex
