package txn_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

type account struct {
	ID      uint64 `drtmx:"key"`
	Owner   string `drtmx:"size=40,index=by_owner"`
	Balance int64
}

var accounts = tables.Of[account]("account")

var errPoor = errors.New("the account has not so much")

// transfer moves money between two accounts.
func transfer(t *txn.Txn, from, to uint64, amount int64) error {
	a, b := account{ID: from}, account{ID: to}
	if err := accounts.Get(t, &a); err != nil {
		return err
	}
	if err := accounts.Get(t, &b); err != nil {
		return err
	}
	if a.Balance < amount {
		return errPoor // nothing is written
	}
	a.Balance -= amount
	b.Balance += amount
	return errors.Join(accounts.Update(t, &a), accounts.Update(t, &b))
}

// A whole database in one process: two data servers, a table of structs, and
// transactions over both of them.
func Example() {
	ctx := context.Background()
	cluster, err := server.Embedded(ctx, server.EmbeddedConfig{Tables: []tables.Definer{accounts}, Servers: 2})
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	db := cluster.DB

	err = db.Update(ctx, func(t *txn.Txn) error {
		return errors.Join(
			accounts.Insert(t, &account{ID: 1, Owner: "ann", Balance: 100}),
			accounts.Insert(t, &account{ID: 2, Owner: "bob", Balance: 20}))
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, amount := range []int64{70, 70} {
		err := db.Update(ctx, func(t *txn.Txn) error { return transfer(t, 1, 2, amount) })
		fmt.Println("transfer:", err)
	}
	err = db.View(ctx, func(t *txn.Txn) error {
		for a, err := range accounts.Scan(t, tables.First, tables.Last) {
			if err != nil {
				return err
			}
			fmt.Println(a.Owner, a.Balance)
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// transfer: <nil>
	// transfer: the account has not so much
	// ann 30
	// bob 90
}

// A page of rows begins after the last row of the page before.
func ExampleTxn_Scan() {
	ctx := context.Background()
	cluster, err := server.Embedded(ctx, server.EmbeddedConfig{Tables: []tables.Definer{accounts}})
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	err = cluster.DB.Update(ctx, func(t *txn.Txn) error {
		for id, owner := range []string{"ann", "bob", "cid", "dan", "eve"} {
			if err := accounts.Insert(t, &account{ID: uint64(id), Owner: owner}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	for from, n := tables.First, 2; n == 2; {
		var owners []string
		next := from
		err := cluster.DB.View(ctx, func(t *txn.Txn) error {
			owners = owners[:0] // the body may run again
			for a, err := range accounts.Scan(t, from, tables.Last) {
				if err != nil {
					return err
				}
				owners, next = append(owners, a.Owner), tables.After(tables.Num(a.ID))
				if len(owners) == 2 {
					break
				}
			}
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(owners)
		from, n = next, len(owners)
	}
	// Output:
	// [ann bob]
	// [cid dan]
	// [eve]
}

// A procedure runs at the data server of a row that it writes, in one round.
func ExampleDB_Call() {
	ctx := context.Background()
	deposit := txn.Procedure{Name: "deposit", Body: func(_ context.Context, t *txn.Txn, args []byte) ([]byte, error) {
		a := account{ID: uint64(args[0])}
		if err := accounts.Get(t, &a); err != nil {
			return nil, err
		}
		a.Balance += int64(args[1])
		return fmt.Append(nil, a.Balance), accounts.Update(t, &a)
	}}
	cluster, err := server.Embedded(ctx, server.EmbeddedConfig{
		Tables: []tables.Definer{accounts}, Procedures: []txn.Procedure{deposit},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	db := cluster.DB

	err = db.Update(ctx, func(t *txn.Txn) error { return accounts.Insert(t, &account{ID: 1, Owner: "ann"}) })
	if err != nil {
		log.Fatal(err)
	}
	table, err := db.Table("account")
	if err != nil {
		log.Fatal(err)
	}
	home, err := db.Home(table, tables.Num(1))
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		balance, err := db.Call(ctx, home, "deposit", []byte{1, 30})
		fmt.Println(string(balance), err)
	}
	_, err = db.Call(ctx, home, "deposit", []byte{9, 30})
	fmt.Println(errors.Is(err, txn.ErrNotFound), err)
	// Output:
	// 30 <nil>
	// 60 <nil>
	// true procedure deposit: txn: no such row: table account, key 9, partition 0
}
