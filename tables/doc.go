// Package tables describes data: tables of Go structs or of plain rows, their
// indexes, how keys map to partitions, and the catalogue that binds them.
//
// # Tables of structs
//
// [Of] makes a table of a struct type. Tags name the fields of its key and of
// its secondary indexes:
//
//	type Account struct {
//		ID      uint64 `drtmx:"key"`
//		Owner   string `drtmx:"size=40,index=by_owner"`
//		Balance int64
//	}
//
//	var accounts = tables.Of[Account]("account")
//
// [CatalogOf] makes the catalogue with which servers start. In a transaction of
// package txn, a typed table reads and writes structs:
//
//	a := Account{ID: 7}
//	if err := accounts.Get(t, &a); err != nil {
//		return err
//	}
//	a.Balance += 100
//	return accounts.Update(t, &a)
//
//	for a, err := range accounts.Scan(t, tables.First, tables.Last) { … }
//	for a, err := range accounts.Index("by_owner").ScanPrefix(t, Account{Owner: "ann"}, 1) { … }
//
// # Rows
//
// Below that, a [Def] defines a table by columns, and a [Row] is an encoded row,
// whose columns a [Field] reads and sets without any copy. A [Key] is a number
// or a string of bytes, and the same methods of a transaction take both:
//
//	t.Get(account, tables.Num(7))
//	t.Get(page, tables.Str("/index"))
//	t.Scan(page.Primary(), tables.Str("/a"), tables.Last)
//
// A table's rows live in its primary index, either a hash index (point access,
// [Hash]) or an ordered one (point and range access, [Ordered]). A secondary
// index is a separate ordered index. The engine computes its keys from the
// columns of the row and updates them in the same transaction as the row.
//
// Everything here is plain data: servers send a catalogue over the network, and every
// process derives the same layouts, index numbers and partitions from it. Methods
// return [ErrCatalog] for a table of another catalogue, unless it has the same name
// and definition.
package tables
