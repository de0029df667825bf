// Package bank is what the server and the clients of a bank share.
package bank

import (
	"context"
	"encoding/binary"
	"errors"

	"drtmx/tables"
	"drtmx/txn"
)

// ErrPoor reports an account whose balance is too low.
var ErrPoor = errors.New("bank: not enough money")

func init() { txn.RegisterError("bank.poor", ErrPoor) }

// Catalog returns the tables.
func Catalog() *tables.Catalog {
	c, err := tables.NewCatalog(tables.Def{
		Name: "account", Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByHash},
		Columns: []tables.Column{{Name: "balance", Type: tables.Int64}},
	})
	if err != nil {
		panic(err)
	}
	return c
}

// Procedures returns withdraw, whose arguments are an account and an amount.
func Procedures() []txn.Procedure {
	account := Catalog().MustTable("account")
	return []txn.Procedure{{Name: "withdraw", Body: func(_ context.Context, t *txn.Txn, args []byte) ([]byte, error) {
		key, amount := tables.Num(binary.LittleEndian.Uint64(args)), int64(binary.LittleEndian.Uint64(args[8:]))
		row, err := t.Get(account, key)
		if err != nil {
			return nil, err
		}
		balance := row.Int(account.Field("balance")) - amount
		if balance < 0 {
			return nil, ErrPoor
		}
		row = row.Clone()
		row.SetInt(account.Field("balance"), balance)
		return nil, t.Update(account, key, row)
	}}}
}
