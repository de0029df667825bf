// Package txn is the transaction API that programs embed: a [DB] over a
// cluster of data servers, with serializable transactions.
//
//   - [DB.View] runs a read-only transaction, strictly serializable, by one-sided READs only: it costs the data servers no CPU.
//   - [DB.Update] runs an interactive transaction: reads are one-sided, writes
//     are buffered, and commit is one RPC to the home server.
//   - [DB.Call] ships a registered [Procedure] to its home server and runs it
//     there with the same [Txn], which suits transactions on hot rows.
//
// A body may run several times: an attempt that meets a concurrent writer is
// aborted and retried, with backoff, up to a bound. Such an attempt may have
// read rows that are not a consistent snapshot. Its result is discarded, but
// the body must not act on it outside the transaction, and must not loop
// forever on it.
//
// Package tables defines the data. Its typed tables read and write Go structs
// through a Txn, and are the best place to begin. The methods of Txn itself take
// encoded rows: [Txn.Get] and [Txn.Scan] read at once, [Txn.GetMany],
// [Txn.QueueGet] and [Txn.QueueScan] read together, in the same network rounds,
// and [Txn.Lookups] reads any number of rows in groups. A row that a Txn returns
// is a view of memory that is used again: Clone it to keep it beyond the body, or
// beyond one step of a range loop.
package txn
