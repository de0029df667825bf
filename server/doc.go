// Package server is the data server: it holds partitions in registered
// memory, applies all writes to them, and stays out of the way of reads.
//
// A partition has one executor: every change of the partition runs under its
// mutex, one transaction after another. A transaction of one partition is
// validated, locked, applied and unlocked in one such step; the lock bits are
// set on every row of its write set before the first new value is published,
// because one-sided readers do not see the mutex. A transaction of several
// partitions is coordinated by its home server with prepare and decide
// (presumed abort): between the two a participant holds exclusive locks on the
// rows that it will write, in the region, and shared locks on the rows and gaps
// that were read, in private memory.
//
// Programs embed the package to run their procedures; see [Embedded] for a
// whole cluster in one process.
package server
