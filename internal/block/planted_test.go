//go:build planted

package block

import (
	"testing"

	"drtmx/internal/planted"
	"drtmx/internal/planted/plantedtest"
)

func TestPlanted(t *testing.T) {
	plantedtest.Run(t, []plantedtest.Case{
		{Bug: planted.IgnoreTail, Test: "TestAcceptInOrderExhaustively", Want: "torn and accepted"},
		{Bug: planted.IgnoreChecksum, Test: "TestAcceptChecksumExhaustively", Want: "torn and accepted|is accepted at"},
	})
}
