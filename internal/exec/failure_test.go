package exec

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"drtmx/internal/wire"
)

// TestLongErrorTextIsCutBetweenCharacters: wherever the limit falls.
func TestLongErrorTextIsCutBetweenCharacters(t *testing.T) {
	for shift := range utf8.UTFMax {
		text := strings.Repeat("a", shift) + strings.Repeat("𝄞", textBytesMax)
		f, err := wire.DecodeFailure([]byte(EncodeFailure(errors.New(text))))
		if err != nil {
			t.Fatal(err)
		}
		kept, cut := strings.CutSuffix(f.Text, " … (cut)")
		if !cut || !utf8.ValidString(kept) || !strings.HasPrefix(text, kept) || len(kept) <= textBytesMax-utf8.UTFMax || len(kept) > textBytesMax {
			t.Errorf("%d bytes before the first: cut to %d bytes, valid %v, ends with %q", shift, len(kept), utf8.ValidString(kept), f.Text[len(f.Text)-20:])
		}
	}
}
