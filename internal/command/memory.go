package command

import (
	"context"
	"fmt"

	"drtmx/internal/cli"
)

// fitsMemory refuses a load that the memory of the data servers cannot hold,
// before it begins. What it lets pass may still be too large by some per cent.
func fitsMemory(ctx context.Context, s *session, l *loadFlags) error {
	stats, err := s.db.ServerStats(ctx)
	if err != nil {
		return fmt.Errorf("statistics of the data servers: %w", err)
	}
	c, partitions, total := l.config(), s.db.Partitions(), uint64(0)
	for i := range stats {
		for _, p := range stats[i].Partitions {
			need, room := uint64(c.MemoryMin(p.Partition, partitions)), p.LimitBytes-min(p.UsedBytes, p.LimitBytes)
			if total += need; need > room {
				return cli.Usagef("--warehouses %d: partition %d would take at least %s, data server %d offers %s for it (--memory of the data servers); at most %d warehouses fit",
					l.warehouses, p.Partition, cli.BytesText(need), i, cli.BytesText(room), c.Scale.WarehousesMax(partitions, int64(room)))
			}
		}
	}
	if has := machineBytes(); s.own && has > 0 && total > has {
		return cli.Usagef("--warehouses %d: the data would take at least %s, this machine has %s of memory; at most %d warehouses fit",
			l.warehouses, cli.BytesText(total), cli.BytesText(has), c.Scale.WarehousesMax(partitions, int64(has)/int64(partitions)))
	}
	return nil
}

// machineBytes is cli.MachineBytes, unless a test replaces it.
var machineBytes = cli.MachineBytes
