package docs

// begin README
import (
	"context"
	"errors"
	"fmt"
	"log"

	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

func embed(ctx context.Context) error {
	type Account struct {
		ID      uint64 `drtmx:"key"`
		Owner   string `drtmx:"size=40,index=by_owner"`
		Balance int64
	}
	accounts := tables.Of[Account]("account")
	c, err := server.Embedded(ctx, server.EmbeddedConfig{Tables: []tables.Definer{accounts}, Servers: 2})
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.DB.Update(ctx, func(t *txn.Txn) error { // serializable; runs again after a conflict
		return errors.Join(accounts.Insert(t, &Account{1, "ann", 100}), accounts.Insert(t, &Account{2, "bob", 200}))
	})
	return errors.Join(err, c.DB.View(ctx, func(t *txn.Txn) error { // one-sided READs alone
		for a, err := range accounts.Scan(t, tables.First, tables.Last) {
			if err != nil {
				return err
			}
			fmt.Println(a.Owner, "has", a.Balance)
		}
		return nil
	}))
}

// end README

func Example_embed() {
	if err := embed(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// ann has 100
	// bob has 200
}
