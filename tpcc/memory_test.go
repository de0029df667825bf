package tpcc

import (
	"testing"

	"drtmx/server"
)

// The memory that a load is said to take at least is not more than it takes, and
// not much less.
func TestMemory(t *testing.T) {
	loads := []struct {
		warehouses int64
		scale      Scale
		partitions int
		close      float64 // the estimate is at least this share
	}{
		{1, Scale{Items: 100, Customers: 30}, 1, 0.5},
		{1, Scale{Items: 1000, Customers: 300}, 1, 0.8}, // models and tables of few rows weigh more
		{3, Scale{Items: 10_000, Customers: 1000}, 2, 0.93},
		{5, Scale{Items: 20_000, Customers: 100}, 4, 0.9},
	}
	if !testing.Short() {
		loads = append(loads, loads[0])
		loads[len(loads)-1].scale, loads[len(loads)-1].close = FullScale(), 0.95
	}
	for _, l := range loads {
		cl, err := server.Embedded(t.Context(), server.EmbeddedConfig{
			Catalog: Catalog(), Procedures: Procedures(), Servers: 1, Partitions: l.partitions, MemoryBytes: 1 << 30,
		})
		if err != nil {
			t.Fatal(err)
		}
		c := LoadConfig{Warehouses: l.warehouses, Seed: 3, Scale: l.scale}
		_, err = Load(t.Context(), cl.DB, c)
		if err != nil {
			t.Fatal(err)
		}
		stats, err := cl.DB.ServerStats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range stats[0].Partitions {
			least := c.MemoryMin(p.Partition, l.partitions)
			if share := float64(least) / float64(p.UsedBytes); share > 1 || share < l.close {
				t.Errorf("%d warehouses of %+v, partition %d of %d: at least %d bytes, %d in use: %.3f", l.warehouses, l.scale, p.Partition, l.partitions, least, p.UsedBytes, share)
			} else {
				t.Logf("%d warehouses of %+v, partition %d of %d: %.3f", l.warehouses, l.scale, p.Partition, l.partitions, share)
			}
		}
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	}
	// As many warehouses as fit fit, and one more does not.
	for _, partitions := range []int{1, 3, 4} {
		const bytes = 1 << 30
		n := FullScale().WarehousesMax(partitions, bytes)
		if n%int64(partitions) != 0 || n == 0 {
			t.Errorf("%d warehouses in %d partitions", n, partitions)
		}
		if c := (LoadConfig{Warehouses: n}); c.MemoryMin(0, partitions) > bytes || c.MemoryMin(partitions-1, partitions) > bytes {
			t.Errorf("%d warehouses do not fit", n)
		}
		if c := (LoadConfig{Warehouses: n + 1}); c.MemoryMin(0, partitions) <= bytes {
			t.Errorf("%d warehouses fit", n+1)
		}
	}
}
