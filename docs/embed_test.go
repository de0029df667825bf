package docs

// begin README
import (
	"context"
	"fmt"
	"log"

	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

func embed(ctx context.Context) error {
	catalog, err := tables.NewCatalog(tables.Def{
		Name: "account", Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByHash},
		Columns: []tables.Column{{Name: "balance", Type: tables.Int64}},
	})
	if err != nil {
		return err
	}
	c, err := server.Embedded(ctx, server.EmbeddedConfig{Catalog: catalog, Servers: 2})
	if err != nil {
		return err
	}
	defer c.Close()
	account := c.DB.Catalog().MustTable("account")
	balance := account.Field("balance")

	err = c.DB.Update(ctx, func(t *txn.Txn) error { // serializable; runs again after a conflict
		row := account.NewRow()
		for key := range uint64(3) {
			row.SetInt(balance, int64(100*key))
			if err := t.Insert(account, tables.Num(key), row); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.DB.View(ctx, func(t *txn.Txn) error { // one-sided READs alone
		rows, err := t.Scan(account.Primary(), tables.Num(1), tables.Num(9), 0)
		for _, r := range rows {
			fmt.Println("account", r.Key, "holds", r.Row.Int(balance))
		}
		return err
	})
}

// end README

func Example_embed() {
	if err := embed(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// account 1 holds 100
	// account 2 holds 200
}
