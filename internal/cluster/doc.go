// Package cluster starts data servers and finds those that run already, on
// this machine or others.
//
//   - [Start] starts all data servers of a cluster: in this process, or each
//     in a child process ([RunChild] is the child's half). In a runtime
//     directory, other processes find the cluster.
//   - [Join] starts one data server in this process, of a cluster whose others
//     are elsewhere.
//   - [Connect] finds a cluster that runs: in a directory, at an [Address], or
//     at the addresses of its data servers.
//
// [Fabrics] makes one provider of several, on all of which a data server
// listens, and of which a client takes the best that leads to it.
//
// # Lifetime
//
// Nothing outlives its owner. A child watches a pipe that only its parent
// holds open: its end-of-file, which also a kill -9 of the parent brings
// about, makes the child close its server and exit; a parent-death signal
// backs that up. Children listen on abstract sockets, and
// regions are memory files without a name, so nothing is left in any file
// system, whoever dies. Only a runtime directory has files, and a later
// [Start] clears those of a dead cluster.
//
// A child that ends by itself takes the cluster with it: data is in memory
// and not replicated, so the rest could not answer for it. See [Cluster.Lost].
package cluster
