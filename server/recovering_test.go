package server

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
	"drtmx/txn/stats"
)

// TestRecoveryTellsItsProgress: phases come in order, and what is done grows up to
// the total.
func TestRecoveryTellsItsProgress(t *testing.T) {
	defer func(d time.Duration) { watchEvery = d }(watchEvery)
	watchEvery = 50 * time.Microsecond
	fs, ctx := vfs.NewMem(), context.Background()
	cl, acct, _ := openBank(t, fs, 1, 2)
	for i := range uint64(2000) {
		err := cl.DB.Update(ctx, func(x *txn.Txn) error {
			row := acct.NewRow()
			row.SetInt(acct.Field("id"), int64(i))
			return x.Put(acct, tables.Num(i), row)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := cl.Servers[0].durable.checkpoints.run(ctx); err != nil {
		t.Fatal(err)
	}
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
	// The goroutine that tells may get no processor before a short recovery has ended.
	var told []stats.Recovering
	for begun := time.Now(); len(told) == 0 && time.Since(begun) < time.Minute; {
		s, err := New(Config{
			Addrs: []string{"server-0"}, Partitions: 2, Catalog: bank(t), Provider: inproc.New(inproc.Options{}),
			Durability: Disk, Dir: ServerDir("data", 0), FS: fs, SegmentBytes: 1 << 20,
			Recovering: func(r stats.Recovering) { told = append(told, r) },
		})
		if err == nil {
			err = s.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(told) == 0 {
		t.Fatal("nothing was told of the recovery")
	}
	for i, r := range told {
		phase := slices.Index(phaseNames[:], r.Phase)
		if phase < 0 || r.Ratio() < 0 || r.Ratio() > 1 {
			t.Fatalf("%+v", r)
		}
		if i == 0 {
			continue
		}
		before := told[i-1]
		if was := slices.Index(phaseNames[:], before.Phase); phase < was || r.Seconds < before.Seconds {
			t.Errorf("%+v comes after %+v", r, before)
		}
	}
}
