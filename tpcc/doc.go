// Package tpcc is the TPC-C workload (standard specification, revision 5.11)
// on package txn: the nine tables, their initial population, the inputs and
// the bodies of the five transactions, and the consistency conditions of
// clause 3.3.2.
//
// Names of tables and columns are those of the specification, in lower case with
// underscores. Money is in cents, rates (tax, discount) in ten-thousandths, times in
// nanoseconds since 1970, all as integers; zero stands for the specification's null
// in the columns that may hold it (o_carrier_id, ol_delivery_d). Numbers in comments
// such as "clause 2.4.2.2" refer to the specification.
package tpcc
