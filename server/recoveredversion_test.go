package server

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/tables"
)

// TestRecoveredVersionIsConfirmedFirst: a version of the catalogue that a server has
// recovered is not given to other servers, and no change is acknowledged that rests on it,
// before all copies in sync have its record. A copy without it may take the server's place,
// and then another change gets the same number.
func TestRecoveredVersionIsConfirmedFirst(t *testing.T) {
	t.Parallel()
	disk, o := vfstest.NewCrashableMem(), copyOptions{servers: 2, replicas: 2, patience: time.Hour, keeper: true}
	def := tables.Def{
		Name: "late", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByBits},
		Columns: []tables.Column{{Name: "n", Type: tables.Int64}},
	}
	c := mustOpenCopied(t, disk, o)
	if err := c.put(t.Context(), c.at(t, 0), 1); err != nil {
		t.Fatal(err)
	}
	c.inSync(t)
	was := c.Servers[0].catalog.Load().Version()
	kept := c.kept(0, 1)
	kept.mu.Lock() // it takes nothing more
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := c.DB.AddTable(ctx, def); done <- err }()
	log := c.Servers[0].durable.log
	await(t, "the version is durable at home", func() bool { return log.Durable() > kept.log.Durable()+24 && log.Durable() == log.End() })
	crashed := disk.CrashClone(vfs.CrashCloneCfg{})
	cancel()
	kept.mu.Unlock()
	<-done
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}

	o.net = inproc.New(inproc.Options{})
	o.net.FailDials("server-0", "host-1", rdma.ErrRefused)
	c = mustOpenCopied(t, crashed, o)
	defer c.Close()
	if now := c.Servers[0].catalog.Load().Version(); now <= was {
		t.Fatalf("version %d was recovered, want one after %d", now, was)
	}
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.DB.AddTable(short, def); err == nil {
		t.Error("the table is acknowledged, and the copy does not have it")
	}
	if now := c.Servers[1].catalog.Load().Version(); now != was {
		t.Errorf("the other server has version %d, and the copy has %d", now, was)
	}
	o.net.FailDials("server-0", "host-1", nil)
	long, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	if _, err := c.DB.AddTable(long, def); err != nil && !errors.Is(err, tables.ErrSchema) {
		t.Error(err)
	}
	await(t, "the other server has the version", func() bool { return c.Servers[1].catalog.Load().Version() > was })
}
