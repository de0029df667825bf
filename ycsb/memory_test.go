package ycsb

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/magiconair/properties"

	"drtmx/ycsb/bench"
	"drtmx/ycsb/props"
)

// load loads the records of a workload.
func load(t *testing.T, db *database, p *properties.Properties) {
	t.Helper()
	plan, err := bench.NewPlan(p, bench.Load)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := bench.Start(t.Context(), bench.Config{Plan: plan, DB: db, Out: &bytes.Buffer{}, Fatal: Fatal}); err != nil || r.Failed > 0 {
		t.Fatalf("load: %v, %d failed, the first with %v", err, r.Failed, r.First)
	}
}

// TestMemory: the memory that a load is said to take at least is not more than it takes,
// and not much less. A load that cannot fit is refused before it begins, and one of which
// most records are there already is not.
func TestMemory(t *testing.T) {
	for _, pairs := range [][]string{
		{"drtmx.partitioning", "hash"},
		{"drtmx.primary", "hash"},
		{"fieldcount", "1", "fieldlength", "8"},
		{"fieldcount", "3", "fieldlength", "900", "fieldlengthdistribution", "uniform"},
		{"fieldcount", "2", "fieldlength", "4000"},
		{"drtmx.keys", "number"},
		{"drtmx.keys", "number", "drtmx.primary", "hash"},
		{"drtmx.keys", "number", "fieldcount", "1", "fieldlength", "100"},
		{"zeropadding", "100", "drtmx.partitioning", "hash"},
		{"zeropadding", "100", "drtmx.primary", "hash"},
		{"zeropadding", "60", "fieldcount", "1", "fieldlength", "30", "drtmx.primary", "hash"},
		{"fieldcount", "1", "fieldlength", "120", "fieldlengthdistribution", "uniform"},
		{"fieldcount", "1", "fieldlength", "20", "fieldlengthdistribution", "uniform", "drtmx.primary", "hash"},
	} {
		const records = 20_000
		pairs = append(pairs, "recordcount", fmt.Sprint(records), "operationcount", "1", "threadcount", "2", props.Memory, "256", "drtmx.servers", "2")
		p := with(pairs...)
		db := create(t, p)
		used := func() (n uint64) {
			t.Helper()
			stats, err := db.db.ServerStats(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i := range stats {
				for _, p := range stats[i].Partitions {
					n += p.UsedBytes
				}
			}
			return n
		}
		before := used()
		if err := FitsMemory(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		load(t, db, p)
		took, least := used()-before, records*db.layout.RowBytesMin(db.table)
		if share := float64(least) / float64(took); share > 1 || share < 0.5 {
			t.Errorf("%v: at least %d bytes, %d in use: %.3f", pairs, least, took, share)
		} else {
			t.Logf("%v: %.3f", pairs, share)
		}
		if err := FitsMemory(t.Context(), db); err != nil {
			t.Errorf("%v, loaded: %v", pairs, err)
		}
	}
	db := create(t, with("recordcount", "1000000", props.Memory, "128", "drtmx.servers", "2"))
	if err := FitsMemory(t.Context(), db); !errors.Is(err, ErrMemory) || !strings.Contains(err.Error(), "1000000 records") {
		t.Errorf("a million records in 256 MiB: %v", err)
	}
	if err := FitsMemory(t.Context(), nil); err != nil {
		t.Errorf("another database: %v", err)
	}
}
