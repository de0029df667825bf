package docs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

type Account struct {
	ID      uint32 `drtmx:"key"`
	Owner   string `drtmx:"size=20,index=by_owner"`
	Balance int64  // in cents
	Entries uint32 // in the account's history
}

type Entry struct {
	Account uint32 `drtmx:"key"`
	Number  uint32 `drtmx:"key"`
	Other   uint32 // the other account; 0 for a deposit
	Amount  int64
}

var (
	accounts = tables.Of[Account]("account")
	history  = tables.Of[Entry]("entry")
	byOwner  = accounts.Index("by_owner")
	errFunds = errors.New("bank: insufficient funds")
)

// book changes the balance of an account and adds to its history.
func book(t *txn.Txn, id, other uint32, amount int64) error {
	a := Account{ID: id}
	if err := accounts.Get(t, &a); err != nil {
		return fmt.Errorf("account %d: %w", id, err)
	}
	if a.Balance+amount < 0 {
		return fmt.Errorf("account %d: %w", id, errFunds)
	}
	a.Balance += amount
	a.Entries++
	return errors.Join(accounts.Update(t, &a), history.Insert(t, &Entry{id, a.Entries, other, amount}))
}

// transfer moves an amount; an error of its body leaves everything as it was.
func transfer(ctx context.Context, db *txn.DB, from, to uint32, amount int64) error {
	return db.Update(ctx, func(t *txn.Txn) error {
		return errors.Join(book(t, from, to, -amount), book(t, to, from, amount))
	})
}

// audit returns the sum of all balances, each compared with its history.
func audit(ctx context.Context, db *txn.DB) (total int64, err error) {
	err = db.View(ctx, func(t *txn.Txn) error {
		total = 0 // the body may run again
		for a, err := range accounts.Scan(t, tables.First, tables.Last) {
			booked := int64(0)
			for e, err := range history.ScanPrefix(t, Entry{Account: a.ID}, 1) {
				if booked += e.Amount; err != nil {
					return err
				}
			}
			if err != nil || a.Balance != booked {
				return errors.Join(err, fmt.Errorf("account %d holds %d, its history %d", a.ID, a.Balance, booked))
			}
			total += a.Balance
		}
		return nil
	})
	return total, err
}

// statement prints the accounts of an owner, each with its last two entries.
func statement(ctx context.Context, db *txn.DB, owner string) error {
	var lines []string
	err := db.View(ctx, func(t *txn.Txn) error {
		lines = lines[:0]
		for a, err := range byOwner.ScanPrefix(t, Account{Owner: owner}, 1) {
			if err != nil {
				return err
			}
			lines = append(lines, fmt.Sprintf("%s, account %d: %d", a.Owner, a.ID, a.Balance))
			lo, hi := history.Prefix(Entry{Account: a.ID}, 1)
			for e, err := range history.ScanReverse(t, lo, hi) {
				if err != nil {
					return err
				}
				lines = append(lines, fmt.Sprintf("  %d: %+d, account %d", e.Number, e.Amount, e.Other))
				if e.Number < a.Entries {
					break
				}
			}
		}
		return nil
	})
	fmt.Println(strings.Join(lines, "\n"))
	return err
}

func bank(ctx context.Context) error {
	c, err := server.Embedded(ctx, server.EmbeddedConfig{Tables: []tables.Definer{accounts, history}, Servers: 2})
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.DB.Update(ctx, func(t *txn.Txn) (err error) {
		for i, owner := range []string{"Ann", "Bob", "Cy"} {
			id := uint32(i + 1)
			err = errors.Join(err, accounts.Insert(t, &Account{ID: id, Owner: owner}), book(t, id, 0, 1000))
		}
		return err
	})
	var clerks sync.WaitGroup
	errs := []error{err, nil, nil, nil}
	for from := uint32(1); from <= 3; from++ {
		clerks.Go(func() {
			for range 50 {
				errs[from] = errors.Join(errs[from], transfer(ctx, c.DB, from, from%3+1, 10))
			}
		})
	}
	clerks.Wait()
	fmt.Println("too much:", errors.Is(transfer(ctx, c.DB, 1, 2, 1001), errFunds))
	fmt.Println("to nobody:", errors.Is(transfer(ctx, c.DB, 1, 9, 1), txn.ErrNotFound))
	total, err := audit(ctx, c.DB)
	fmt.Println("total:", total, err)
	errs = append(errs, transfer(ctx, c.DB, 2, 1, 200), transfer(ctx, c.DB, 1, 3, 50), statement(ctx, c.DB, "Ann"))
	return errors.Join(errs...)
}

func Example_bank() {
	fmt.Println(bank(context.Background()))
	// Output:
	// too much: true
	// to nobody: true
	// total: 3000 <nil>
	// Ann, account 1: 1150
	//   103: -50, account 3
	//   102: +200, account 2
	// <nil>
}
