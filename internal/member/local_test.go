package member_test

import (
	"sync"
	"testing"

	"go.uber.org/goleak"

	"drtmx/internal/member"
	"drtmx/internal/member/membertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	var mu sync.Mutex
	clusters := map[string]*membertest.Local{}
	membertest.Run(t, membertest.Fixture{
		TTL: member.MinTTL,
		Open: func(_ testing.TB, name string) member.Store {
			mu.Lock()
			defer mu.Unlock()
			if clusters[name] == nil {
				clusters[name] = membertest.NewLocal()
			}
			return clusters[name].Open()
		},
	})
}
