package strict

import "strings"

// Nearest returns the known word that a mistyped one probably meant, or "".
func Nearest(word string, known []string) string {
	if len(word) > 40 {
		return ""
	}
	best, bestD := "", 4
	w := fold(word)
	for _, k := range known {
		d := distance(w, fold(k))
		// Two edits in a word of four letters would make anything of it.
		if d < bestD && d <= max(1, len(k)/3) {
			best, bestD = k, d
		}
	}
	return best
}

// fold makes stopGrace, stop-grace and stop_grace the same word.
func fold(s string) string {
	return strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(s))
}

// distance counts the edits between two short words, two swapped neighbours
// being one edit.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
