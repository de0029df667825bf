package provide

import (
	"container/list"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
)

// Bounds of a Lobby.
const (
	// MaxGuests is how many peers may be in their handshakes at a time.
	MaxGuests = 2048
	// MaxGuestsEach is how many of them may come from one source, such as a user
	// or a network address.
	MaxGuestsEach = 1024
)

// Lobby holds the sockets of peers in their handshakes. It is never closed to
// newcomers: in a full lobby the oldest socket of the source with the most of them
// makes room, one on which nothing has arrived before any other. So silent peers,
// however many, keep no peer out, and a source with many sockets displaces only its
// own. The zero value is ready. Safe for concurrent use.
type Lobby struct {
	mu     sync.Mutex
	guests list.List      // of *Guest, oldest first
	count  map[string]int // by source
	closed bool
}

// Guest is one socket in a Lobby.
type Guest struct {
	conn   net.Conn
	source string
	at     *list.Element // nil: not in the lobby
	heard  atomic.Bool
}

// Speak notes that something of the peer's was read.
func (g *Guest) Speak() { g.heard.Store(true) }

// Enter takes a socket in, and closes another one if there is no room. It
// fails only after Close.
func (l *Lobby) Enter(c net.Conn, source string) (*Guest, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, false
	}
	if l.count == nil {
		l.count = make(map[string]int)
	}
	switch {
	case l.count[source] >= MaxGuestsEach:
		l.evict(source)
	case l.guests.Len() >= MaxGuests:
		l.evict(l.largest())
	}
	g := &Guest{conn: c, source: source}
	g.at = l.guests.PushBack(g)
	l.count[source]++
	return g, true
}

// Leave ends a guest's stay: its handshake is over. It reports whether the
// guest was there to the end, and not closed to make room.
func (l *Lobby) Leave(g *Guest) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.at == nil {
		return false
	}
	l.remove(g)
	return true
}

// Close closes all guests, and lets no more in.
func (l *Lobby) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for l.guests.Len() > 0 {
		g := l.guests.Front().Value.(*Guest)
		l.remove(g)
		g.conn.Close()
	}
}

// largest is the source with the most guests.
func (l *Lobby) largest() (source string) {
	most := 0
	for s, n := range l.count {
		if n > most {
			source, most = s, n
		}
	}
	return source
}

// evict closes the oldest guest of a source on which nothing has arrived, or
// else the oldest one.
func (l *Lobby) evict(source string) {
	var oldest *Guest
	for el := l.guests.Front(); el != nil; el = el.Next() {
		g := el.Value.(*Guest)
		if g.source != source {
			continue
		}
		if oldest == nil {
			oldest = g
		}
		if g.silent() {
			oldest = g
			break
		}
	}
	l.remove(oldest)
	oldest.conn.Close()
}

func (l *Lobby) remove(g *Guest) {
	l.guests.Remove(g.at)
	g.at = nil
	if l.count[g.source]--; l.count[g.source] == 0 {
		delete(l.count, g.source)
	}
}

// silent reports whether the peer has sent nothing so far.
func (g *Guest) silent() bool {
	if g.heard.Load() {
		return false
	}
	sc, ok := g.conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	waits := true
	err = raw.Control(func(fd uintptr) { waits = !received(fd) })
	return err != nil || waits
}
