package indextest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/testseed"
	"drtmx/rdma"
)

// roundsLimit is far above what any operation may take; beyond it an engine's
// bound on rounds has failed.
const roundsLimit = 1000

// Session is one reader: a connection and operations of a client half.
type Session struct {
	e      *Env
	client index.Client
	conn   rdma.Conn
	get    index.GetOp
	scan   index.ScanOp
	batch  [2]rdma.Batch

	// Rounds counts the rounds of all operations run.
	Rounds uint64
	// GaveUp counts operations that ended in Fallback.
	GaveUp uint64
}

// NewSession connects a reader and loads what the client half caches.
func NewSession(e *Env, c index.Client) (*Session, error) {
	s := &Session{e: e, client: c, get: c.NewGet(), scan: c.NewScan()}
	if err := s.redial(); err != nil {
		return nil, err
	}
	// Another session may be loading the client half: then Maintain returns at once.
	for c.Stale() {
		if err := s.maintain(); err != nil {
			return nil, err
		}
		runtime.Gosched()
	}
	return s, nil
}

// Close ends the connection, if there is one: a dial may have failed.
func (s *Session) Close() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
}

func (s *Session) redial() error {
	if s.conn != nil {
		_ = s.conn.Close()
	}
	var err error
	s.conn, err = s.e.Dial()
	return err
}

func (s *Session) maintain() error {
	for s.client.Stale() {
		err := s.client.Maintain(context.Background(), s.conn)
		if err == nil {
			return nil
		}
		if !errors.Is(err, rdma.ErrPeerDown) {
			return fmt.Errorf("maintain: %w", err)
		}
		if err := s.redial(); err != nil {
			return err
		}
	}
	return nil
}

// run drives one operation to its end.
func (s *Session) run(op index.Op) error {
	done, next := &s.batch[0], &s.batch[1]
	done.Reset()
	for range roundsLimit {
		next.Reset()
		if op.Next(done, next) {
			return nil
		}
		if next.Len() == 0 {
			return errors.New("an operation neither finished nor posted anything")
		}
		s.Rounds++
		if err := s.conn.Post(next); err == nil {
			_ = s.conn.Wait(context.Background(), next) // the operation sees each status
		} else {
			for i := range next.WRs {
				next.WRs[i].Status = rdma.StatusPeerDown
			}
		}
		done, next = next, done
	}
	return fmt.Errorf("an operation is not over after %d rounds", roundsLimit)
}

// retries is how often a session starts an operation again at once that was given up,
// or whose connection broke. After that it waits in between, for what may hold it up is
// a mutator that a busy machine does not run.
const retries = 200

// tries counts the attempts of one operation.
type tries struct {
	n   int
	end time.Time
}

// more reports whether there may be one more.
func (t *tries) more() bool {
	if t.n++; t.n <= retries {
		return true
	}
	if t.end.IsZero() {
		t.end = time.Now().Add(testseed.Patience())
	}
	time.Sleep(time.Millisecond)
	return time.Now().Before(t.end)
}

// Get looks key up. Fallback and broken connections are retried; what is
// left is Found, NotFound or Locked.
func (s *Session) Get(key index.Key) (*index.GetResult, error) { return s.GetAt(key, 0) }

// GetAt is Get for what key was at the end of a tick, which may be Gone.
func (s *Session) GetAt(key index.Key, at clock.Tick) (*index.GetResult, error) {
	var t tries
	for t.more() {
		s.get.StartAt(key, at)
		if err := s.run(s.get); err != nil {
			return nil, err
		}
		res := s.get.Result()
		if again, err := s.again(res.Status, res.Err); err != nil {
			return nil, fmt.Errorf("get %v: %w", key, err)
		} else if !again {
			return res, nil
		}
	}
	return nil, fmt.Errorf("get %v: given up %d times", key, t.n-1)
}

// Scan is Get for a range.
func (s *Session) Scan(lo, hi index.Key, limit int) (*index.ScanResult, error) {
	return s.ScanAt(lo, hi, limit, 0)
}

// ScanAt is GetAt for a range.
func (s *Session) ScanAt(lo, hi index.Key, limit int, at clock.Tick) (*index.ScanResult, error) {
	var t tries
	for t.more() {
		s.scan.StartAt(lo, hi, limit, at)
		if err := s.run(s.scan); err != nil {
			return nil, err
		}
		res := s.scan.Result()
		if again, err := s.again(res.Status, res.Err); err != nil {
			return nil, fmt.Errorf("scan %v..%v limit %d: %w", lo, hi, limit, err)
		} else if !again {
			return res, nil
		}
	}
	return nil, fmt.Errorf("scan %v..%v: given up %d times", lo, hi, t.n-1)
}

func (s *Session) again(st index.Status, err error) (bool, error) {
	switch st {
	case index.Found, index.NotFound, index.Locked, index.Gone:
		if s.client.Stale() {
			// Seldom, so that operations meet stale caches too.
			if s.Rounds%16 == 0 {
				return false, s.maintain()
			}
		}
		return false, nil
	case index.Fallback:
		s.GaveUp++
		return true, s.maintain()
	case index.Failed:
		if errors.Is(err, rdma.ErrPeerDown) {
			return true, s.redial()
		}
		return false, fmt.Errorf("failed: %w", err)
	}
	return false, fmt.Errorf("status %v", st)
}

// Floor reads the floor of the partition.
func (s *Session) Floor() (clock.Tick, error) {
	var word [1]uint64
	var t tries
	for t.more() {
		var b rdma.Batch
		b.Read(s.e.RKey, block.FloorAddr, word[:])
		err := rdma.Do(context.Background(), s.conn, &b)
		if err == nil {
			return clock.Tick(word[0]), nil
		}
		if !errors.Is(err, rdma.ErrPeerDown) {
			return 0, fmt.Errorf("floor: %w", err)
		}
		if err := s.redial(); err != nil {
			return 0, err
		}
	}
	return 0, errors.New("floor: the connection keeps breaking")
}

// Valid reads the proofs' words in one round and reports whether all hold.
func (s *Session) Valid(proofs []index.Proof) (bool, error) {
	if len(proofs) == 0 {
		return true, nil
	}
	words := make([]uint64, len(proofs))
	var t tries
	for t.more() {
		var b rdma.Batch
		for i, p := range proofs {
			_, addr := index.RegionOf(p.Addr)
			b.Read(s.e.proofKey(), addr, words[i:i+1])
		}
		err := rdma.Do(context.Background(), s.conn, &b)
		if errors.Is(err, rdma.ErrPeerDown) {
			if err := s.redial(); err != nil {
				return false, err
			}
			continue
		}
		if err != nil {
			return false, fmt.Errorf("validate: %w", err)
		}
		for i, p := range proofs {
			if words[i] != p.Word || block.Header(p.Word).Locked() {
				return false, nil
			}
		}
		return true, nil
	}
	return false, errors.New("validate: the connection keeps breaking")
}

// validNow is Valid without the fabric, for runs of a single thread.
func (e *Env) validNow(proofs []index.Proof) bool {
	for _, p := range proofs {
		if e.word(p.Addr) != p.Word || block.Header(p.Word).Locked() {
			return false
		}
	}
	return true
}
