package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/exec"
	"drtmx/internal/placement"
	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// callAnswer has the answers to a request that a test gives to a server itself.
type callAnswer chan []byte

func (a callAnswer) Reply(b []byte) error {
	a <- slices.Clone(b)
	return nil
}

// handCall gives a server a call, as if it had just arrived.
// left is what its caller has left of its time, 0 if it has no deadline.
func handCall(s *Server, id wire.ID, left time.Duration, part int, proc string, args []byte) callAnswer {
	a := make(callAnswer, 2)
	go s.handle(&rdma.Request{From: &anyRole, Body: wire.AppendCall(nil, id, s.clocks.present(), 0, left, 0, placement.Partition(part), proc, args), Replier: a})
	return a
}

// wait returns the answer.
func (a callAnswer) wait(t *testing.T) []byte {
	t.Helper()
	select {
	case resp := <-a:
		return resp
	case <-time.After(testseed.Patience()):
		t.Fatal("no answer")
		return nil
	}
}

var errOwn = errors.New("the procedure's own error")

// stopBodies are bodies that a stop of their server ends, with the code that their
// callers get.
var stopBodies = []struct {
	name string
	code wire.Code
	body func(ctx context.Context, x *txn.Txn, entry *tables.Table) error
}{
	{"reads at a server that does not answer", wire.Unavailable, func(_ context.Context, x *txn.Txn, entry *tables.Table) error {
		_, err := x.Get(entry, tables.Num(1<<32))
		return err
	}},
	{"hides why a read elsewhere failed", wire.Unavailable, func(_ context.Context, x *txn.Txn, entry *tables.Table) error {
		_, err := x.Get(entry, tables.Num(1<<32))
		return fmt.Errorf("no entry: %v", err)
	}},
	{"returns the error of its context", wire.Unavailable, func(ctx context.Context, _ *txn.Txn, _ *tables.Table) error {
		<-ctx.Done()
		return ctx.Err()
	}},
	{"wraps the error of its context as text", wire.Unavailable, func(ctx context.Context, _ *txn.Txn, _ *tables.Table) error {
		<-ctx.Done()
		return fmt.Errorf("gave up: %v", ctx.Err())
	}},
	{"decides by itself", wire.RolledBack, func(ctx context.Context, _ *txn.Txn, _ *tables.Table) error {
		<-ctx.Done()
		return fmt.Errorf("gave up: %w", &txn.ProcedureError{Code: 7, Text: "sold out"})
	}},
	{"decides by an error that has a name", wire.RolledBack, func(ctx context.Context, _ *txn.Txn, _ *tables.Table) error {
		<-ctx.Done()
		return fmt.Errorf("gave up: %w", errOwn)
	}},
}

// TestCloseIsNoFailureOfAProcedure: what ends because its server closes has not
// failed by itself, wherever it is when that happens. Its caller is told that the
// server is not available, and never takes that for a decision of the procedure; such
// decisions reach it as ever.
func TestCloseIsNoFailureOfAProcedure(t *testing.T) {
	txn.RegisterError("server_test.own", errOwn)
	cat := bank(t)
	entry := cat.MustTable("entry")
	entered := make(chan struct{}, 2*len(stopBodies))
	net := inproc.New(inproc.Options{})
	cl, err := Embedded(t.Context(), EmbeddedConfig{
		Catalog: cat, Servers: 2, Partitions: 2 * len(stopBodies), Network: net, // one at home for each body
		Procedures: []txn.Procedure{{Name: "body", Body: func(ctx context.Context, x *txn.Txn, args []byte) ([]byte, error) {
			entered <- struct{}{}
			return nil, stopBodies[args[0]].body(ctx, x, entry)
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := net.Pause("server-1"); err != nil {
		t.Fatal(err)
	}
	s := cl.Servers[0]
	var calls []callAnswer
	for i := range stopBodies {
		calls = append(calls, handCall(s, wire.ID{Client: 4711 + uint64(i), Seq: 1}, 0, 2*i, "body", []byte{byte(i)}))
		<-entered
		if i < 2 {
			<-entered // again, when it has left its partition: before others hold up the server's pollers
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for i, b := range stopBodies {
		resp := calls[i].wait(t)
		if got := wire.Code(resp[0]); got != b.code {
			t.Errorf("a procedure that %s: code %d, want %d: %q", b.name, got, b.code, resp[1:])
		}
	}
	if err := net.Resume("server-1"); err != nil {
		t.Fatal(err)
	}
	// One that leaves its partition when the server's own client has been closed.
	if v := s.runLate(t); v.code != wire.Unavailable {
		t.Errorf("a procedure that begins when all is closed: %+v, want code %d", v, wire.Unavailable)
	}
}

// runLate runs a procedure elsewhere on a server that is closed.
func (s *Server) runLate(t *testing.T) verdict {
	t.Helper()
	if s.client.db == nil {
		t.Fatal("the server has no client that could be closed")
	}
	_, v := s.elsewhere.run(s.workers.ctx, s.parts.of[0], s.procs["body"], []byte{0}, wire.ID{Client: 4710, Seq: 1}, 0)
	return v
}

// TestCallersHearOfTheClose: a server that closes answers the procedures that wait for
// another server before it cuts its callers off.
func TestCallersHearOfTheClose(t *testing.T) {
	cat := bank(t)
	entry := cat.MustTable("entry")
	const calls = 20
	entered, release := make(chan struct{}, 2*calls), make(chan struct{})
	net := inproc.New(inproc.Options{})
	cl, err := Embedded(t.Context(), EmbeddedConfig{Catalog: cat, Servers: 2, Network: net, Procedures: []txn.Procedure{{
		Name: "read", Body: func(ctx context.Context, x *txn.Txn, _ []byte) ([]byte, error) {
			entered <- struct{}{}
			_, err := x.Get(entry, tables.Num(1<<32))
			if ctx.Err() != nil {
				<-release // the body ends when all connections might have been closed
			}
			return nil, err
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := net.Pause("server-1"); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, calls)
	for range calls {
		go func() {
			_, err := cl.DB.Call(t.Context(), 0, "read", nil)
			ended <- err
		}()
	}
	for range 2 * calls {
		<-entered
	}
	s := cl.Servers[0]
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	awaitClosedClient(s)
	close(release)
	cutOff := 0
	for range calls {
		err := <-ended
		var failed *txn.ProcedureError
		switch {
		case errors.As(err, &failed), err == nil:
			t.Errorf("a call to a server that closes: %v", err)
		case errors.Is(err, txn.ErrOutcomeUnknown): // the machine may hold up the goroutines of a few
			cutOff++
		case !errors.Is(err, txn.ErrUnavailable):
			t.Errorf("a call to a server that closes: %v, want %v", err, txn.ErrUnavailable)
		}
	}
	if cutOff > calls/2 {
		t.Errorf("%d of %d calls were cut off", cutOff, calls)
	}
	if err := errors.Join(<-closed, net.Resume("server-1")); err != nil {
		t.Error(err)
	}
}

// awaitClosedClient waits until a server that closes has closed its own client.
func awaitClosedClient(s *Server) {
	for {
		if _, err := s.client.db.NewSession(context.Background()); err != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	s.client.Lock() // Close holds it meanwhile
	defer s.client.Unlock()
}

// TestStopIsNoFailureOfTheProcedure: the same for a stop between two reads of a
// procedure, and for a server whose client has ended before its context.
func TestStopIsNoFailureOfTheProcedure(t *testing.T) {
	var stop context.CancelFunc
	var runs atomic.Int64
	cat := bank(t)
	acct := cat.MustTable("account")
	cl, err := Embedded(t.Context(), EmbeddedConfig{Catalog: cat, Servers: 2, Procedures: []txn.Procedure{{
		Name: "read", Body: func(_ context.Context, x *txn.Txn, _ []byte) ([]byte, error) {
			runs.Add(1)
			for k := range uint64(4) { // some of them elsewhere
				if _, err := x.Get(acct, tables.Num(k)); err != nil {
					return nil, err
				}
				stop()
			}
			return nil, nil
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for k := range uint64(4) {
		row := acct.NewRow()
		row.SetInt(acct.Field("id"), int64(k))
		if err := cl.DB.Update(t.Context(), func(x *txn.Txn) error { return x.Insert(acct, tables.Num(k), row) }); err != nil {
			t.Fatal(err)
		}
	}
	s := cl.Servers[0]
	ctx, cancel := context.WithCancel(s.workers.ctx)
	stop = cancel
	_, v := s.elsewhere.run(ctx, s.parts.of[0], s.procs["read"], nil, wire.ID{Client: 4711, Seq: 1}, 0)
	if v.code != wire.Unavailable || runs.Load() == 0 {
		t.Errorf("%+v after %d runs, want code %d", v, runs.Load(), wire.Unavailable)
	}
	s.client.db.Close()
	if _, v := s.elsewhere.run(s.workers.ctx, s.parts.of[0], s.procs["read"], nil, wire.ID{Client: 4711, Seq: 2}, 0); v.code != wire.Unavailable {
		t.Errorf("without its client: %+v, want code %d", v, wire.Unavailable)
	}
}

// TestAnswerForAnError: which errors of a procedure are its own failures. One that
// fails by itself has failed, whatever the server does.
func TestAnswerForAnError(t *testing.T) {
	txn.RegisterError("server_test.own", errOwn)
	running := context.Background()
	stopped, cancel := context.WithCancel(running)
	cancel()
	own := &exec.ProcedureError{Code: 7, Text: "sold out"}
	for _, c := range []struct {
		err                 error
		running, afterwards wire.Code
	}{
		{context.Canceled, wire.RolledBack, wire.Unavailable}, // of a context that the body has made
		{errors.New("no reason"), wire.RolledBack, wire.Unavailable},
		{exec.ErrNotFound, wire.RolledBack, wire.Unavailable},
		{own, wire.RolledBack, wire.RolledBack},
		{fmt.Errorf("order: %w", errOwn), wire.RolledBack, wire.RolledBack},
		{fmt.Errorf("%w: %w", own, exec.ErrClosed), wire.RolledBack, wire.RolledBack},
		{fmt.Errorf("read: %w", exec.ErrClosed), wire.Unavailable, wire.Unavailable},
		{fmt.Errorf("%w: read answer", exec.ErrProtocol), wire.Bad, wire.Bad},
		{fmt.Errorf("%w: gave up", exec.ErrConflict), wire.Conflict, wire.Conflict},
		{exec.ErrUnavailable, wire.Unavailable, wire.Unavailable},
		{verdict{code: wire.InDoubt}, wire.InDoubt, wire.InDoubt}, // it may have committed
	} {
		if v := failed(running, c.err); v.code != c.running {
			t.Errorf("%v: code %d, want %d", c.err, v.code, c.running)
		}
		if v := failed(stopped, c.err); v.code != c.afterwards {
			t.Errorf("%v when the server stops: code %d, want %d", c.err, v.code, c.afterwards)
		}
	}
}
