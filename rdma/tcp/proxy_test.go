package tcp

import (
	"io"
	"net"
	"sync"
	"testing"
)

// proxy forwards one connection at a time to a server, for as long as it is
// told to.
type proxy struct {
	t       testing.TB
	l       net.Listener
	to      string
	running sync.WaitGroup
	once    sync.Once

	mu     sync.Mutex
	conns  []net.Conn
	frozen bool
	limit  map[bool]int // bytes to the server, or from it, before the cut
}

func newProxy(t testing.TB, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, l: l, to: to, limit: map[bool]int{}}
	p.running.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }

// freeze makes the proxy swallow everything.
func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = true
}

// cut makes the proxy break connections after n bytes in one direction.
func (p *proxy) cut(toServer bool, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit[toServer] = n
}

func (p *proxy) close() {
	p.once.Do(func() {
		p.l.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			c.Close()
		}
		p.mu.Unlock()
		p.running.Wait()
	})
}

func (p *proxy) accept() {
	for {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			in.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, in, out)
		p.mu.Unlock()
		p.running.Go(func() { p.forward(out, in, true) })
		p.running.Go(func() { p.forward(in, out, false) })
	}
}

func (p *proxy) forward(dst, src net.Conn, toServer bool) {
	defer dst.Close()
	defer src.Close()
	p.mu.Lock()
	left, limited := p.limit[toServer]
	p.mu.Unlock()
	var b [4096]byte
	for {
		n, err := src.Read(b[:])
		p.mu.Lock()
		frozen := p.frozen
		p.mu.Unlock()
		if frozen {
			_, _ = io.Copy(io.Discard, src)
			return
		}
		if limited && n > left {
			n, err = left, io.EOF
		}
		left -= n
		if _, werr := dst.Write(b[:n]); werr != nil || err != nil {
			return
		}
	}
}
