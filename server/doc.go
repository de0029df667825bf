// Package server is the data server: it holds partitions in registered
// memory, applies all writes to them, and takes no part in one-sided reads.
//
// [Embedded] runs a whole cluster in this process and opens a txn.DB on it. [New]
// and [Server.Start] run one data server of a cluster, over a provider of package
// rdma/shm, rdma/tcp, rdma/verbs or rdma/multi; clients then use txn.Open.
// Package server/serve makes a command of that, with flags and metrics, in ten
// lines. In each case the program names its tables and its procedures.
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
package server
