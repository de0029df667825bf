package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"drtmx/internal/cluster"
	"drtmx/tables"
	"drtmx/txn"
)

// keeping says which versions a cluster keeps.
type keeping struct {
	name      string
	retain    time.Duration
	snapshots bool // a snapshot before each window asks for versions
}

// updates compares updates alone, without readers beside them, in clusters that keep no
// versions, versions on demand that nobody asks for, and versions that a snapshot has
// asked for. They take turns.
func (o *options) updates(ctx context.Context, out, progress io.Writer) (err error) {
	const rows, writers = 30_000, 8
	ways := []keeping{
		{"--retain 0", cluster.RetainNothing, false},
		{"no snapshots", cluster.DefaultRetain, false},
		{"snapshots", cluster.DefaultRetain, true},
	}
	var stores []*drtmx
	var cells []cell
	for _, w := range ways {
		st, err := openDrtmx(ctx, 1, rows, w.retain)
		if err != nil {
			return err
		}
		defer st.Close()
		stores = append(stores, st)
		cells = append(cells, cell{store: st, rows: rows, writers: writers, plan: plan{window: 500 * time.Millisecond}, seed: o.seed})
	}
	sums, rates, cpus := make([]window, len(ways)), make([][]float64, len(ways)), make([][]float64, len(ways))
	for round := range o.retainRounds {
		fmt.Fprintf(progress, "%s updates, round %d of %d\n", time.Now().Format(time.TimeOnly), round+1, o.retainRounds)
		turn := make([]*window, len(ways))
		for j := range ways {
			i := (round + j) % len(ways)
			if ways[i].snapshots {
				if err := stores[i].ask(ctx); err != nil {
					return err
				}
			}
			if turn[i], err = cells[i].window(ctx, nil, "", 0, 0); err != nil {
				return err
			}
			sums[i].add(turn[i])
		}
		for i, v := range turn {
			rates[i] = append(rates[i], v.rate()/turn[0].rate())
			cpus[i] = append(cpus[i], v.cpuUs()/turn[0].cpuUs())
		}
	}
	fmt.Fprintf(out, "\n## Updates alone, %d rows, %d writers, 1 server\n\n", rows, writers)
	fmt.Fprintln(out, "| versions | commits/s | ÷ `--retain 0`: median of rounds | least to greatest | CPU of clients and servers, µs a commit | ÷ `--retain 0` | least to greatest | data, MiB | of them versions |")
	fmt.Fprintln(out, "|---|--:|--:|--:|--:|--:|--:|--:|--:|")
	for i, w := range ways {
		r, c, n := slices.Sorted(slices.Values(rates[i])), slices.Sorted(slices.Values(cpus[i])), len(rates[i])
		fmt.Fprintf(out, "| %s | %.0f | %.3f | %.2f–%.2f | %.2f | %.3f | %.2f–%.2f | %.1f | %.1f |\n", w.name,
			sums[i].rate(), r[n/2], r[0], r[n-1], sums[i].cpuUs(), c[n/2], c[0], c[n-1],
			float64(sums[i].bytes)/(1<<20), float64(sums[i].versions)/(1<<20))
	}
	return nil
}

// ask takes a snapshot, so that the servers keep versions for a while.
func (d *drtmx) ask(ctx context.Context) error {
	return d.db.Snapshot(ctx, func(x *txn.Txn) error {
		_, err := x.Get(d.table(hot), tables.Num(0))
		return err
	})
}
