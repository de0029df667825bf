package docs

import (
	"context"
	"fmt"
	"log"
	"os"

	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// A program follows what others commit, and stores how far it is.
func Example_changes() {
	type Account struct {
		ID      uint64 `drtmx:"key"`
		Balance int64
	}
	ctx, accounts := context.Background(), tables.Of[Account]("account")
	dir, err := os.MkdirTemp("", "changes")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	c, err := server.Embedded(ctx, server.EmbeddedConfig{Tables: []tables.Definer{accounts}, Durability: server.Disk, Dir: dir})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	for _, a := range []Account{{1, 100}, {1, 70}} {
		if err := c.DB.Update(ctx, func(t *txn.Txn) error { return accounts.Put(t, &a) }); err != nil {
			log.Fatal(err)
		}
	}
	from := txn.OldestChange() // or the stored cursor, by txn.ParseCursor
	for change, err := range c.DB.Changes(ctx, from, txn.UntilNow()) {
		if err != nil {
			log.Fatal(err)
		}
		for _, w := range change.Writes {
			fmt.Println(w.Kind, w.Table.Name(), w.Key.Num(), w.Row.Int(w.Table.Field("balance")))
		}
		from = change.Cursor // store it with what was made of the change
	}
	// Output:
	// insert account 1 100
	// update account 1 70
}
