package tpcc

import (
	"context"
	"fmt"

	"drtmx/tables"
)

// stockTally sums, over rows of STOCK or over the lines ordered from them, the
// quantity, the number of lines and the number of remote lines. print is a
// fingerprint of the same three sums per item. It is linear, so that both sides add
// up to the same value in any order. Without it, two errors in one warehouse could
// cancel out. It takes a few words per warehouse instead of three per row.
type stockTally struct {
	quantity, lines, remote int64
	print                   uint64
}

// Salts keep the three sums of an item apart in the fingerprint.
const (
	saltLines  = 1 << 32
	saltRemote = 2 << 32
)

func (s *stockTally) add(o stockTally) {
	s.quantity += o.quantity
	s.lines += o.lines
	s.remote += o.remote
	s.print += o.print
}

// addStock adds a row's s_ytd, s_order_cnt and s_remote_cnt.
func (s *stockTally) addStock(item, ytd, orderCnt, remoteCnt int64) {
	i := uint64(item)
	s.add(stockTally{
		ytd, orderCnt, remoteCnt,
		tables.Mix(i)*uint64(ytd) + tables.Mix(i|saltLines)*uint64(orderCnt) + tables.Mix(i|saltRemote)*uint64(remoteCnt),
	})
}

func (s *stockTally) addLine(item, quantity int64, remote bool) {
	s.addStock(item, quantity, 1, int64(btoi(remote)))
}

const chunkStock = 500 // rows of STOCK per View

// stock evaluates ConditionStock for one warehouse, after all districts.
func (k *checker) stock(ctx context.Context, v viewer, w int64) error {
	var have stockTally
	err := k.stockRows(ctx, v, w, func(item int64, row tables.Row) {
		f := &k.s.s
		if q := row.Int(f.quantity); q < 10 || q > 100 {
			k.report(ConditionStock, w, 0, fmt.Sprintf("stock %d.%d: s_quantity is %d, want 10 to 100", w, item, q))
		}
		have.addStock(item, row.Int(f.ytd), row.Int(f.orderCnt), row.Int(f.remoteCnt))
	})
	if err != nil {
		return err
	}
	k.mu.Lock()
	want := k.mu.ordered[w]
	k.mu.Unlock()
	if have != want {
		text, err := k.locateStock(ctx, v, w)
		if err != nil {
			return err
		}
		k.report(ConditionStock, w, 0, text)
	}
	k.step()
	return nil
}

// stockRows passes each STOCK row of the warehouse to fn once.
func (k *checker) stockRows(ctx context.Context, v viewer, w int64, fn func(item int64, row tables.Row)) error {
	var pending [chunkStock]pendingRow
	var rows [chunkStock]tables.Row
	for from := int64(1); from <= k.info.Scale.Items; from += chunkStock {
		n := min(chunkStock, k.info.Scale.Items-from+1)
		err := v.view(ctx, func(t operations) error {
			for i := range n {
				pending[i] = t.QueueGet(k.s.stock, must(StockKey(w, from+i)))
			}
			for i := range n {
				row, err := pending[i].Row()
				if err != nil {
					return loaded(err, "stock %d.%d", w, from+i)
				}
				rows[i] = append(rows[i][:0], row...) // fn must not see rows of an attempt that fails
			}
			return nil
		})
		if err != nil {
			return err
		}
		for i := range n {
			fn(from+i, rows[i])
		}
	}
	return nil
}

// locateStock finds the first STOCK row of a warehouse that differs from the
// sums of its lines, by reading all lines again.
func (k *checker) locateStock(ctx context.Context, v viewer, w int64) (string, error) {
	want := make([]stockTally, k.info.Scale.Items+1)
	f := &k.s.ol
	for home := int64(1); home <= k.info.Warehouses; home++ {
		for d := int64(1); d <= Districts; d++ {
			err := k.linesSinceLoad(ctx, v, home, d, func(row tables.Row) {
				if item := row.Int(f.iID); row.Int(f.supplyWID) == w && keyFits(item, k.info.Scale.Items) {
					want[item].addLine(item, row.Int(f.quantity), home != w)
				}
			})
			if err != nil {
				return "", err
			}
		}
	}
	text := fmt.Sprintf("warehouse %d: stock differs from the lines of an item that does not exist", w)
	found := false
	err := k.stockRows(ctx, v, w, func(item int64, row tables.Row) {
		s := &k.s.s
		ytd, cnt, remote := row.Int(s.ytd), row.Int(s.orderCnt), row.Int(s.remoteCnt)
		o := &want[item]
		if !found && (ytd != o.quantity || cnt != o.lines || remote != o.remote) {
			found = true
			text = fmt.Sprintf("stock %d.%d: s_ytd, s_order_cnt, s_remote_cnt are %d, %d, %d; lines ordered since the load make %d, %d, %d",
				w, item, ytd, cnt, remote, o.quantity, o.lines, o.remote)
		}
	})
	return text, err
}

// linesSinceLoad passes each line of the district's orders since the load to fn once.
// It reads some lines per View.
func (k *checker) linesSinceLoad(ctx context.Context, v viewer, w, d int64, fn func(tables.Row)) error {
	lo, hi := orderLinesRange(w, d, k.info.Scale.Customers+1, MaxOrders)
	return k.pages(ctx, v, k.s.orderLine.Primary(), lo, hi, func(_ tables.Key, row tables.Row) { fn(row) })
}
