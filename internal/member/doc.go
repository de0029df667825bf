// Package member keeps who belongs to a cluster: which data servers are alive,
// which partitions each of them holds, and since which epoch.
//
// It decides nothing itself. A [Store] offers what deciding needs, and two
// implement it: [Local] within a process, and package etcd, where consensus is
// etcd's. Both are held to one conformance suite, package membertest.
//
// There are two kinds of value:
//
//   - The [Map] is what all agree on. It changes only by compare-and-swap of
//     its epoch, which therefore never repeats and never goes back. A map names
//     each server with its [Instance], so that a server that was restarted, and
//     whose memory is another, is told from the one before it.
//   - Registrations say who is alive. A server has one for as long as it renews
//     its [Lease]; the [Stamp] of a lease only ever grows.
//
// A server is in the map whether it is alive or not: to take it out, or to give
// its partitions to another, is a change of the map, which somebody has to make.
//
// # Leases and clocks
//
// No clocks are compared. A holder counts its lease from the moment at which it
// asked for a renewal, by its own clock ([Lease.Deadline]), the store from the
// moment at which it granted it, which is later: so the holder gives up first.
package member
