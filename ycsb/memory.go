package ycsb

import (
	"context"
	"errors"
	"fmt"

	"github.com/pingcap/go-ycsb/pkg/prop"
	goycsb "github.com/pingcap/go-ycsb/pkg/ycsb"

	"drtmx/internal/cli"
	"drtmx/ycsb/props"
)

// ErrMemory reports a load that does not fit into the memory of the data servers.
var ErrMemory = errors.New("ycsb: the load does not fit")

// FitsMemory refuses a load that the memory of a drtmx cluster cannot hold, before it
// begins. What it lets pass may still be too large by some per cent. It returns nil for
// any other database, and if the properties do not say how large the load is.
func FitsMemory(ctx context.Context, db goycsb.DB) error {
	d, ok := db.(*database)
	if !ok || d.layout.Records() == 0 {
		return nil
	}
	stats, err := d.db.ServerStats(ctx)
	if err != nil {
		return fmt.Errorf("statistics of the data servers: %w", err)
	}
	var room, has uint64
	for i := range stats {
		for _, p := range stats[i].Partitions {
			room += p.LimitBytes - min(p.UsedBytes, p.LimitBytes)
		}
		for _, ix := range stats[i].Indexes {
			has += ix.Rows
		}
	}
	row := d.layout.RowBytesMin(d.table)
	loads := uint64(d.layout.Records())
	need := (loads - min(has, loads)) * row // rows that are there may be loaded again
	whose, flag := "the data servers offer", props.Memory
	if machine := cli.MachineBytes(); d.addr == "" && machine > 0 && machine < room {
		room, whose = machine, "this machine has"
	}
	if need > room {
		return fmt.Errorf("%w: %d records would take at least %s, %s %s (%s, %s); at most %d records fit",
			ErrMemory, loads, cli.BytesText(need), whose, cli.BytesText(room), flag, prop.RecordCount, has+room/row)
	}
	return nil
}
