package tpcc

import (
	"fmt"
	"slices"
)

// stockLevelOrders is the number of the district's latest orders that
// STOCK-LEVEL reads (clause 2.8.2.2).
const stockLevelOrders = 20

// Bounds of the threshold (clause 2.8.1.2).
const (
	MinThreshold = 10
	MaxThreshold = 20
)

// StockLevelInput is the input of a STOCK-LEVEL (clause 2.8.1).
type StockLevelInput struct {
	W, D      int64 // W_ID, D_ID: a terminal's own, always the same (clause 2.8.1.1)
	Threshold int64 // 10 to 20
}

func (in *StockLevelInput) check() error {
	if _, err := DistrictKey(in.W, in.D); err != nil {
		return fmt.Errorf("%w: %w", ErrInput, err)
	}
	if in.Threshold < MinThreshold || in.Threshold > MaxThreshold {
		return fmt.Errorf("%w: threshold %d, want %d to %d", ErrInput, in.Threshold, MinThreshold, MaxThreshold)
	}
	return nil
}

// StockLevelOutput is the output of a STOCK-LEVEL (clause 2.8.3.3).
type StockLevelOutput struct {
	// Low is low_stock: the number of different items of the district's last 20
	// orders whose stock at its warehouse is below the threshold.
	Low int64
}

// stockLevel is the body of STOCK-LEVEL (clause 2.8.2.2) with its buffers. It
// can be run any number of times, by one goroutine.
type stockLevel struct {
	s   *Schema
	in  *StockLevelInput
	out *StockLevelOutput

	items  []int64
	stocks [stockLevelOrders * MaxLines]pendingRow
}

// run makes one attempt, in three steps: it reads the district, the lines of its last
// orders, and the stock of their items, some 200 rows together.
//
// The specification allows committed reads in any order (clause 2.8.2.3). Like
// every transaction here, this one is serializable.
func (l *stockLevel) run(t operations) error {
	in, s := l.in, l.s
	row, err := t.QueueGet(s.district, must(DistrictKey(in.W, in.D))).Row()
	if err != nil {
		return fmt.Errorf("tpcc: district %d.%d: %w", in.W, in.D, err)
	}
	l.items, l.out.Low = l.items[:0], 0
	last := row.Int(s.d.nextOID) - 1
	if last < 1 {
		return nil
	}
	lo, hi := orderLinesRange(in.W, in.D, max(1, last-stockLevelOrders+1), last)
	lines, err := t.QueueScan(s.orderLine.Primary(), lo, hi, stockLevelOrders*MaxLines).Entries()
	if err != nil {
		return fmt.Errorf("tpcc: lines of the last orders of district %d.%d: %w", in.W, in.D, err)
	}
	for _, e := range lines {
		l.items = append(l.items, e.Row.Int(s.ol.iID))
	}
	slices.Sort(l.items)
	l.items = slices.Compact(l.items)
	for i, item := range l.items {
		key, err := StockKey(in.W, item)
		if err != nil {
			return fmt.Errorf("tpcc: line of district %d.%d: %w", in.W, in.D, err)
		}
		l.stocks[i] = t.QueueGet(s.stock, key)
	}
	for i, item := range l.items {
		row, err := l.stocks[i].Row()
		if err != nil {
			return fmt.Errorf("tpcc: stock %d.%d: %w", in.W, item, err)
		}
		if row.Int(s.s.quantity) < in.Threshold {
			l.out.Low++
		}
	}
	return nil
}
