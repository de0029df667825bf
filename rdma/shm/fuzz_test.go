package shm

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/rdmatest"
)

// messages are control messages of every kind, and what is none.
func messages() [][]byte {
	all := [][]byte{[]byte("GET / HTTP/1.1\r\n\r\n")}
	for k := msgHello; k <= msgClosed; k++ {
		m := message{kind: k, version: wireVersion, id: 1, slot: 2, rkey: 3, pollers: 1, regions: 1, segment: 1 << 20, max: 1 << 30}
		var b [messageBytes]byte
		m.encode(&b)
		all = append(all, b[:])
	}
	return all
}

// FuzzMessage decodes control messages from an untrusted peer.
func FuzzMessage(f *testing.F) {
	for _, b := range messages() {
		f.Add(b)
	}
	f.Fuzz(checkMessage)
}

func TestMutatedMessages(t *testing.T) {
	rdmatest.Mutated(t, 100000, messages(), func(b []byte) { checkMessage(t, b) })
}

func checkMessage(t *testing.T, b []byte) {
	m, err := decodeMessage(b)
	if err != nil {
		return
	}
	if m.pollers > MaxPollers || m.regions > regionsMax || m.reason >= reasonMax {
		t.Fatalf("accepted %+v", m)
	}
	var again [messageBytes]byte
	m.encode(&again)
	if m2, err := decodeMessage(again[:]); err != nil || m2 != m {
		t.Fatalf("%+v became %+v, %v", m, m2, err)
	}
}

// fuzzLink is the server side of a link without sockets or goroutines.
func fuzzLink(f testing.TB, pollers int) *serverLink {
	seg, err := mem.NewControl("fuzz", linkBytes)
	if err != nil {
		f.Skipf("SKIP: %v", err)
	}
	page, err := mem.NewControl("fuzz", pageBytes)
	if err != nil {
		f.Fatal(err)
	}
	// A closed socket: what is sent to the client fails at once.
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		f.Fatal(err)
	}
	unix.Close(fds[1])
	file := os.NewFile(uintptr(fds[0]), "closed")
	nc, err := net.FileConn(file)
	if err != nil {
		f.Fatal(err)
	}
	file.Close()
	nc.Close()
	e := &endpoint{}
	e.Init("shm", "fuzz", regionsMax)
	e.Count(refusalNames...)
	l := &serverLink{
		e: e, sock: socket{nc.(*net.UnixConn)}, seg: seg, peerPage: page, peerSleep: page.Span(0, mem.LineBytes),
		requests:  seg.Span(requestBells, doorbellWords*mem.WordBytes),
		responses: seg.Span(responseBells, doorbellWords*mem.WordBytes),
	}
	for i := range pollers {
		p := &poller{e: e, index: i}
		p.links.Store(&[]*serverLink{l})
		e.pollers = append(e.pollers, p)
		l.bells = append(l.bells, nil)
	}
	return l
}

// FuzzSegment runs the server's side on a segment that holds whatever a
// hostile client has put there: pairs of a word's place and its value.
func FuzzSegment(f *testing.F) {
	word := func(place uint16, v uint64) []byte {
		return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint16(nil, place), v)
	}
	f.Add(append(word(0, 1), word(512, 5<<32|1)...))
	f.Add(append(word(0, 1), word(512, 1<<63|1)...))
	f.Add(append(word(0, ^uint64(0)), word(512, (rdma.MaxMessageBytes+1)<<32|1)...))
	f.Add(append(word(63, ^uint64(0)), word(512, rdma.MaxMessageBytes<<32|1)...))
	links := []*serverLink{fuzzLink(f, 1), fuzzLink(f, 3)}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, l := range links {
			l.requests.Zero()
			l.conns = make([]atomic.Pointer[serverConn], slotsFor(len(l.bells)))
			for range 3 {
				if _, ok := l.open(1); !ok {
					t.Fatal("no room")
				}
			}
			// Header and first words of every slot, and all doorbells.
			for b := b; len(b) >= 10; b = b[10:] {
				place, v := int(binary.LittleEndian.Uint16(b)), binary.LittleEndian.Uint64(b[2:])
				if place < 512 {
					l.seg.Span(0, pageBytes).Store(place, v)
				} else {
					slot := (place - 512) / 16 % 3
					request, response := slotAreas(l.seg, slot)
					request.span.Store(place%16, v)
					response.span.Store(place%16, v)
				}
			}
			runPollers(t, l)
		}
	})
}

func runPollers(t *testing.T, l *serverLink) {
	handled := map[rdma.PeerID]int{}
	h := func(q *rdma.Request) {
		if len(q.Body) > rdma.MaxMessageBytes {
			t.Fatalf("request of %d bytes", len(q.Body))
		}
		handled[q.Peer]++
		own := bytes.Clone(q.Body)
		if err := q.Reply(own); err != nil {
			t.Fatalf("reply: %v", err)
		}
	}
	for _, p := range l.e.pollers {
		p.pass(h)
		p.pass(h)
	}
	for peer, n := range handled {
		if n > 1 {
			t.Fatalf("one request of peer %d was handled %d times", peer, n)
		}
	}
}
