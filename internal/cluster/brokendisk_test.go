package cluster

import (
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/datadir"
	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/server"
)

// badDisk is the disk of one host, whose logs cannot be written while it is bad.
type badDisk struct {
	mu   sync.Mutex
	how  string        // "": it is well
	well chan struct{} // closed when it is again
	hits int           // writes and syncs that have met it
}

var errBadDisk = errors.New("input/output error")

func (b *badDisk) fs() *vfstest.FS {
	fs := vfstest.New(vfs.Default)
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		if op != vfstest.Write && op != vfstest.Sync || !strings.Contains(name, string(filepath.Separator)+server.LogDir+string(filepath.Separator)) {
			return nil
		}
		b.mu.Lock()
		how, well := b.how, b.well
		if how != "" {
			b.hits++
		}
		b.mu.Unlock()
		switch how {
		case "fails":
			return errBadDisk
		case "hangs":
			<-well
		}
		return nil
	}
	return fs
}

func (b *badDisk) turn(how string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.how = how; how == "" {
		close(b.well)
		return
	}
	b.well = make(chan struct{})
}

// TestBadDiskIsTakenOver: the disk of a host fails, or does not answer any more. The host
// ends, another one has the server, and clients go on: nothing that was acknowledged is
// lost. When the disk is well again the server comes back.
func TestBadDiskIsTakenOver(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"fails", "hangs"} {
		t.Run(how, func(t *testing.T) {
			soon(t)
			var disk badDisk
			h := startHostsSet(t, 2, 2, 0, func(o *JoinOptions) {
				o.Return, o.around.diskPatience = true, 3*time.Second // longer than a busy disk may take that is well
				if o.Index == 0 {
					o.around.disk = disk.fs()
				}
			})
			w := h.write(2)
			w.goOn()
			h.inSync(0)
			disk.turn(how)
			h.ends(0)
			if why := h.hosts[0].Err(); why == nil || !strings.Contains(why.Error(), "data server 0") {
				t.Errorf("the host ends because %v", why)
			}
			if err := h.hosts[0].Close(); err != nil && !errors.Is(err, errNotClosed) && !errors.Is(err, errBadDisk) {
				t.Errorf("close: %v", err)
			}
			if err := h.stores[0].Close(); err != nil { // as its process does: the lease of a server that hangs runs out
				t.Error(err)
			}
			h.stores[0] = &awayStore{Store: h.members.Open()}
			w.goOn()
			if at := h.at(0); at != 1 {
				t.Errorf("data server 0 is at host %d", at)
			}
			disk.turn("")
			h.startWhenFree(0)
			w.goOn()
			t.Logf("%d pairs acknowledged, %d operations met the disk", w.end(), disk.hits)
		})
	}
}

// startWhenFree starts a host again whose directory is still open while the server that
// hung ends: its process would be gone.
func (h *hostsOf) startWhenFree(i int) {
	h.t.Helper()
	for end := time.Now().Add(testseed.Patience()); ; time.Sleep(20 * time.Millisecond) {
		m, err := Join(h.ctx, h.options(i))
		if err == nil {
			h.hosts[i] = m
			return
		}
		if !errors.Is(err, datadir.ErrInUse) || time.Now().After(end) {
			h.t.Fatal(err)
		}
	}
}

// ends waits until a host says that it ends.
func (h *hostsOf) ends(i int) {
	h.t.Helper()
	select {
	case <-h.hosts[i].Lost():
	case <-time.After(testseed.Patience()):
		h.t.Fatalf("host %d runs on", i)
	}
}
