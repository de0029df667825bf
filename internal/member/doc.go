// Package member stores the membership of a cluster: which data servers are
// alive, which partitions each server holds, and since which epoch.
//
// It makes no decisions itself. A [Store] provides the operations that
// decisions need. It has two implementations: [Local] within a process, and
// package etcd, where etcd provides consensus. Both pass one conformance suite,
// package membertest.
//
// There are two kinds of value:
//
//   - The [Map] is the agreed state of the cluster. It changes only by
//     compare-and-swap of its epoch, which therefore never repeats and never goes
//     back. A map names each server with its [Instance], which distinguishes a
//     restarted server from the process before it, and with the [Incarnation] of
//     its state if that outlives the process.
//   - Registrations list the live servers. A server has one as long as it renews
//     its [Lease]; the [Stamp] of a lease only ever grows.
//
// A server stays in the map whether it is alive or not. Removing it, or moving
// its partitions to another server, is a change of the map, which the caller
// must make.
//
// # Leases and clocks
//
// No clocks are compared. A holder counts its lease by its own clock from the
// moment it sent the renewal ([Lease.Deadline]). The store counts from the
// moment it granted the renewal, which is later. So the holder's lease ends
// first at the holder.
package member
