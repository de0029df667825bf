package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"drtmx/internal/datadir"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// KeeperConfig configures a Keeper. Provider, Addr, Dir and Servers are required.
type KeeperConfig struct {
	// Provider carries RPCs, and Addr is where the keeper listens.
	Provider rdma.Provider
	Addr     string
	// Dir has the copies, each in a directory of its own: see CopyDir. It is made if there
	// is none. FS is its file system, nil means the operating system's; SegmentBytes is
	// the size of a log's files, 0 means the default.
	Dir          string
	FS           vfs.FS
	SegmentBytes int64
	// Host is the number of the host of this process, and Servers the number of data
	// servers of the cluster.
	Host, Servers int
	// Log receives records of start and stop and of the copies; nil means no log.
	Log *slog.Logger
}

func (c *KeeperConfig) check() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(c.Provider != nil, "no fabric provider")
	bad(c.Dir != "", "copies without a directory")
	bad(c.Servers > 0 && c.Servers <= wire.MaxParts, "%d data servers, want 1 to %d", c.Servers, wire.MaxParts)
	bad(c.Host >= 0 && c.Host < max(c.Servers, 1), "host %d of %d", c.Host, c.Servers)
	if len(errs) > 0 {
		return fmt.Errorf("%w: %w", ErrConfig, errors.Join(errs...))
	}
	return nil
}

// Keeper is a host without a data server: it keeps copies of data servers' logs, as
// a data server does, and serves nothing else. Methods are safe for concurrent use.
type Keeper struct {
	cfg    KeeperConfig
	log    *slog.Logger
	ep     rdma.Endpoint
	lock   io.Closer // of Dir
	copies keptCopies
	hello  []byte

	ctx    context.Context
	cancel context.CancelFunc
	steps  sync.WaitGroup

	closeOnce sync.Once
	closeErr  error
}

// NewKeeper locks the directory and opens the keeper's endpoint. The keeper serves
// nothing before Start. The error wraps ErrConfig, or is one of package datadir or of
// the provider.
func NewKeeper(c KeeperConfig) (k *Keeper, err error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	k = &Keeper{cfg: c, log: c.Log.With("host", c.Host)}
	if k.hello, err = json.Marshal(wire.Hello{Version: wire.Version, Keeper: true}); err != nil {
		return nil, err
	}
	if err := datadir.MakeDir(c.FS, c.Dir); err != nil {
		return nil, err
	}
	if _, ok, err := datadir.Read(c.FS, c.Dir); err != nil || ok {
		return nil, errors.Join(err, fmt.Errorf("%w: %s is the directory of a data server, and a host without one keeps copies elsewhere", datadir.ErrForeign, c.Dir))
	}
	if k.lock, err = datadir.Lock(c.FS, c.Dir); err != nil {
		return nil, err
	}
	if k.ep, err = c.Provider.Listen(c.Addr, rdma.ListenOptions{}); err != nil {
		return nil, errors.Join(fmt.Errorf("host %d: %w", c.Host, err), k.lock.Close())
	}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	k.copies = keptCopies{ctx: k.ctx, log: k.log, fs: c.FS, dir: c.Dir, segmentBytes: c.SegmentBytes, host: c.Host}
	return k, nil
}

// Start begins to take the steps of copies. It returns at once.
func (k *Keeper) Start() error {
	if err := k.ep.Serve(k.handle); err != nil {
		return err
	}
	k.log.Info("keeper of copies listens", "address", k.ep.Addr(), "fabric", k.cfg.Provider.Name(), "dir", k.cfg.Dir)
	return nil
}

// Addr returns the address for data servers.
func (k *Keeper) Addr() string { return k.ep.Addr() }

// YieldCopy is like Server.YieldCopy.
func (k *Keeper) YieldCopy(home placement.Server) (dir string, made datadir.Copy, err error) {
	return k.copies.yield(home)
}

// ReadCopy is like Server.ReadCopy.
func (k *Keeper) ReadCopy(home placement.Server) (CopyRead, error) { return k.copies.read(home) }

// CopySilence is like Server.CopySilence.
func (k *Keeper) CopySilence(home placement.Server) (d time.Duration, ok bool) {
	return k.copies.quiet(home)
}

// ResumeCopy is like Server.ResumeCopy.
func (k *Keeper) ResumeCopy(home placement.Server) { k.copies.unyield(home) }

// Close ends the steps that are under way, and releases the directory. It may be
// called again.
func (k *Keeper) Close() error {
	k.closeOnce.Do(func() {
		k.cancel()
		err := k.ep.Close()
		k.steps.Wait()
		k.closeErr = errors.Join(err, k.copies.close(), k.lock.Close())
		if k.closeErr != nil {
			k.log.Error("keeper of copies stopped", "error", k.closeErr)
			return
		}
		k.log.Info("keeper of copies stopped")
	})
	return k.closeErr
}

// handle serves one request: a step of a copy, or a hello.
func (k *Keeper) handle(r *rdma.Request) {
	if len(r.Body) == 0 {
		k.refuse(r, wire.Bad, "empty request")
		return
	}
	op, d := wire.Op(r.Body[0]), wire.NewDecoder(r.Body[1:])
	if least := needs(op); r.From.Role < least {
		k.refuse(r, wire.Forbidden, fmt.Sprintf("%v needs the role %v, the peer is %v", op, least, r.From))
		return
	}
	switch op {
	case wire.OpHello:
		k.reply(r, k.hello)
	case wire.OpCopy:
		m, ok := copyStep(&d, k.cfg.Servers)
		if !ok {
			k.refuse(r, wire.Bad, "malformed step of a copy")
			return
		}
		k.steps.Go(func() { k.reply(r, k.copies.answer(m)) })
	default:
		k.refuse(r, wire.Bad, wire.ErrKeeper.Error())
	}
}

func (k *Keeper) refuse(r *rdma.Request, code wire.Code, text string) {
	k.reply(r, verdict{code: code, text: text}.append(nil))
}

func (k *Keeper) reply(r *rdma.Request, body []byte) {
	if err := r.Reply(body); err != nil {
		k.log.Debug("answer not sent", "peer", r.Peer, "error", err)
	}
}
