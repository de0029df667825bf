// Package cluster starts data servers, and finds running ones, on this machine
// or on others.
//
//   - [Start] starts all data servers of a cluster: in this process, or each
//     in a child process ([RunChild] is the child's half). In a runtime
//     directory, other processes find the cluster.
//   - [Join] starts one data server in this process. The other servers of its
//     cluster run in other processes.
//   - [Connect] finds a cluster that runs: in a directory, at an [Address], or
//     at the addresses of its data servers.
//
// Package rdma/multi combines several providers into one. A data server listens
// on all of them; a client takes the best one that reaches the server.
//
// # Lifetime
//
// Nothing outlives its owner. A child watches a pipe that only its parent holds
// open. When the parent ends, even by kill -9, the child reads end-of-file,
// closes its server and exits; a parent-death signal backs this up. Children
// listen on abstract sockets, and regions are memory files without a name, so
// nothing stays in any file system, whichever process dies. Only a runtime
// directory has files, and a later [Start] removes those of a dead cluster.
//
// If a child ends by itself, the whole cluster ends: its data was in memory and
// not replicated, so the other servers could not answer for it. See
// [Cluster.Lost].
package cluster
