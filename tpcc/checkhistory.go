package tpcc

import (
	"context"
	"fmt"
	"sync/atomic"

	"drtmx/tables"
	"drtmx/txn"
)

// historyTally sums the HISTORY rows of a district.
type historyTally struct{ amount, rows, last int64 }

func (h *historyTally) add(key tables.Key, amount int64) {
	h.amount += amount
	h.rows++
	h.last = max(h.last, int64(key.Num()&MaxHistory))
}

// payments sums the HISTORY rows of each customer over all warehouses, in a few
// bytes per customer.
type payments struct {
	customers int64 // per district
	amount    []atomic.Int64
	rows      []atomic.Int32
}

func newPayments(info LoadInfo) *payments {
	n := info.Warehouses * Districts * info.Scale.Customers
	return &payments{info.Scale.Customers, make([]atomic.Int64, n), make([]atomic.Int32, n)}
}

func (p *payments) at(w, d, c int64) int64 { return ((w-1)*Districts+d-1)*p.customers + c - 1 }

// history sums the HISTORY rows of one warehouse, for the conditions that compare
// them. It takes several Views, so the database must be at rest.
func (k *checker) history(ctx context.Context, v viewer, w int64) error {
	f := &k.s.h
	for d := int64(1); d <= Districts; d++ {
		tally := &k.paidAt[(w-1)*Districts+d-1]
		lo, hi := must(HistoryKey(w, d, 1)), must(HistoryKey(w, d, MaxHistory))
		err := k.pages(ctx, v, k.s.history.Primary(), lo, hi, func(key tables.Key, row tables.Row) {
			amount := row.Int(f.amount)
			tally.add(key, amount)
			cw, cd, c := row.Int(f.cWID), row.Int(f.cDID), row.Int(f.cID)
			if !keyFits(cw, k.info.Warehouses) || !keyFits(cd, Districts) || !keyFits(c, k.info.Scale.Customers) {
				k.report("3.3.2.10", w, d, fmt.Sprintf("history %d.%d.%d: is of customer %d.%d.%d, who does not exist",
					w, d, key.Num()&MaxHistory, cw, cd, c))
				return
			}
			at := k.paidBy.at(cw, cd, c)
			k.paidBy.amount[at].Add(amount)
			k.paidBy.rows[at].Add(1)
		})
		if err != nil {
			return err
		}
	}
	k.step()
	return nil
}

// pages passes each row of a range to fn once. It reads the range page by page, each
// in a View of its own.
func (k *checker) pages(ctx context.Context, v viewer, ix *tables.Index, lo, hi tables.Key, fn func(tables.Key, tables.Row)) error {
	const pageRows = 4096
	var keys []tables.Key
	var rows []tables.Row
	for {
		n := 0
		err := v.view(ctx, func(t operations) error {
			page, err := t.QueueScan(ix, lo, hi, pageRows).Entries()
			if err != nil {
				return err
			}
			n, keys = len(page), keys[:0]
			for i, e := range page { // copied: fn must not see rows of an attempt that fails
				keys = append(keys, e.Key)
				if i == len(rows) {
					rows = append(rows, nil)
				}
				rows[i] = append(rows[i][:0], e.Row...)
			}
			return nil
		})
		if err != nil {
			return err
		}
		for i, key := range keys {
			fn(key, rows[i])
		}
		if n < pageRows || keys[n-1] == hi {
			return nil
		}
		lo = nextKey(keys[n-1])
	}
}

// sums evaluates the conditions on year-to-date sums: W_YTD = Σ D_YTD (3.3.2.1),
// W_YTD = Σ H_AMOUNT (3.3.2.8), D_YTD = Σ H_AMOUNT (3.3.2.9). A sum over no rows is
// 0, and compared. It also checks that D_NEXT_H_ID counts the district's HISTORY
// rows.
func (k *checker) sums(t operations, w int64, faults map[string]string) error {
	s := k.s
	warehouse := t.QueueGet(s.warehouse, must(WarehouseKey(w)))
	var districts [Districts + 1]pendingRow
	for d := int64(1); d <= Districts; d++ {
		districts[d] = t.QueueGet(s.district, must(DistrictKey(w, d)))
	}
	row, err := warehouse.Row()
	if err != nil {
		return loaded(err, "warehouse %d", w)
	}
	wYTD, sumD, sumH := row.Int(s.w.ytd), int64(0), int64(0)
	for d := int64(1); d <= Districts; d++ {
		if row, err = districts[d].Row(); err != nil {
			return loaded(err, "district %d.%d", w, d)
		}
		dYTD, next := row.Int(s.d.ytd), row.Int(s.d.nextHID)
		paid, err := k.paidIn(t, w, d)
		if err != nil {
			return err
		}
		sumD += dYTD
		sumH += paid.amount
		if dYTD != paid.amount && faults["3.3.2.9"] == "" {
			faults["3.3.2.9"] = fmt.Sprintf("district %d.%d: d_ytd is %d, sum(h_amount) is %d", w, d, dYTD, paid.amount)
		}
		if (next-1 != paid.rows || next-1 != paid.last) && faults[ConditionHistory] == "" {
			faults[ConditionHistory] = fmt.Sprintf("district %d.%d: d_next_h_id - 1 is %d, rows in history %d, the last number %d",
				w, d, next-1, paid.rows, paid.last)
		}
	}
	if wYTD != sumD {
		faults["3.3.2.1"] = fmt.Sprintf("warehouse %d: w_ytd is %d, sum(d_ytd) is %d", w, wYTD, sumD)
	}
	if wYTD != sumH {
		faults["3.3.2.8"] = fmt.Sprintf("warehouse %d: w_ytd is %d, sum(h_amount) is %d", w, wYTD, sumH)
	}
	return nil
}

// paidIn returns the tally of a district's HISTORY: of a database at rest that of
// history, else that of the present View.
func (k *checker) paidIn(t operations, w, d int64) (historyTally, error) {
	if k.AtRest {
		return k.paidAt[(w-1)*Districts+d-1], nil
	}
	var tally historyTally
	lo, hi := must(HistoryKey(w, d, 1)), must(HistoryKey(w, d, MaxHistory))
	err := scan(t, k.s.history.Primary(), lo, hi, func(e txn.Entry) error {
		tally.add(e.Key, e.Row.Int(k.s.h.amount))
		return nil
	})
	return tally, err
}
