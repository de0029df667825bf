// Package server is the data server: it holds partitions in registered
// memory, applies all writes to them, and stays out of the way of reads.
//
// A partition has one executor: whatever changes it runs under the
// partition's mutex, one transaction after another. A transaction of one
// partition is validated, locked, applied and unlocked in one such step; the
// lock bits are set on every row of its write set before the first new value
// is published, because one-sided readers do not see the mutex. A transaction
// of several partitions is coordinated by its home server with prepare and
// decide (presumed abort): between the two a participant keeps exclusive locks
// on what it will write, in the region, and shared locks on what was read, in
// private memory.
//
// Programs embed the package to run their own procedures; see [Embedded] for
// a whole cluster in one process.
package server
