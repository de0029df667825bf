package metrics

import (
	"net"
	"testing"
)

func listenUnix(t *testing.T, name string) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func dialUnix(t *testing.T, name string) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
